// Whose fault a crash or an exception is, by what stands on the stack. Functions in sections of
// their own play the plugin and the engine; crashes happen in children.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

#include "sdk/base/plugin_at_work.h"

using namespace meshwright::detail;

namespace plugin_at_work_test {

using Deed = void (*)(int);

#define PRETENDS(owner) __attribute__((noinline, section(#owner)))
PRETENDS(pretended_plugin) void plugin_does(Deed deed, int left) {
  deed(left);
  asm volatile("");  // no tail call: this function stays on the stack
}
PRETENDS(pretended_engine) void engine_does(Deed deed, int left) {
  deed(left);
  asm volatile("");
}

extern "C" {
extern const char __start_pretended_plugin[], __stop_pretended_plugin[];
extern const char __start_pretended_engine[], __stop_pretended_engine[];
}

const PluginCode* plugin() {
  static const PluginCode* made = [] {
    const PluginCode* code = plugin_code("pretended 1.0.0 (/nowhere)");
    plugin_has_code(code, __start_pretended_plugin, __stop_pretended_plugin);
    plugin_has_code(nullptr, __start_pretended_engine, __stop_pretended_engine);
    return code;
  }();
  return made;
}

void crash(int) { __builtin_trap(); }

struct Ended {
  int status;
  std::string said;
};
Ended in_child(const std::function<void()>& body, void (*handler)(int) = SIG_DFL) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], 2);
    // The test program has handlers of its own.
    for (int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) ::signal(number, handler);
    PluginWatch watch;
    body();
    ::_exit(0);
  }
  ::close(ends[1]);
  Ended out{};
  char buffer[512];
  for (ssize_t n; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    out.said.append(buffer, static_cast<size_t>(n));
  ::close(ends[0]);
  ::waitpid(child, &out.status, 0);
  return out;
}
bool blames_plugin(const Ended& ended) {
  return WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 2 &&
         ended.said.starts_with("error[E0421]: the plugin pretended 1.0.0 (/nowhere) crashed in ");
}
bool blames_nobody(const Ended& ended) {
  return WIFSIGNALED(ended.status) && WTERMSIG(ended.status) == SIGILL && ended.said.empty();
}

TEST_CASE(
    "a crash is put down to the innermost that is known: the plugin, or the engine that it "
    "called") {
  const PluginCode* code = plugin();
  CHECK(blames_plugin(in_child([&] {
    PluginCall call(code, "end_step");
    plugin_does(crash, 0);
  })));
  CHECK(blames_plugin(in_child([] { plugin_does(crash, 0); })));  // a hook that it left behind
  // Nothing of it is known yet while it is loaded: what the thread was called for says it.
  CHECK(blames_plugin(in_child([&] {
    engine_does(
        [](int) {
          PluginCall call(plugin(), "being loaded");
          crash(0);
        },
        0);
  })));
  CHECK(blames_plugin(in_child([] { engine_does([](int) { plugin_does(crash, 0); }, 0); })));
  CHECK(blames_nobody(in_child([&] {
    PluginCall call(code, "end_step");
    plugin_does([](int) { engine_does(crash, 0); }, 0);
  })));
  CHECK(blames_nobody(in_child([] { engine_does(crash, 0); })));
  CHECK(blames_nobody(in_child([] { plugin_does([](int) { engine_does(crash, 0); }, 0); })));
}

TEST_CASE("threads that crash together are told once, and so is a crash in what follows") {
  plugin();
  const auto crash_twice = [] {
    std::thread other([] {
      ::usleep(20'000);
      plugin_does(crash, 0);
    });
    plugin_does(crash, 0);
    other.join();
  };
  const auto told_once = [](const Ended& ended) {
    return blames_plugin(ended) && ended.said.find("error[", 1) == std::string::npos;
  };
  // The handler that was there before takes its time, or crashes.
  CHECK(told_once(in_child(crash_twice, [](int) { ::usleep(100'000); })));
  CHECK(told_once(in_child(crash_twice, crash)));
}

TEST_CASE("a stack that cannot be walked leaves what the thread was called for") {
  const PluginCode* code = plugin();
  const Ended ended = in_child([&] {
    PluginCall call(code, "end_step");
    plugin_does(
        [](int) {
          // The return addresses above are gone, and the frames lead to nowhere.
          auto* frame = static_cast<void**>(__builtin_frame_address(0));
          for (int i = 0; i < 12; ++i) const_cast<void* volatile*>(frame)[i] = nullptr;
          crash(0);
        },
        0);
  });
  CHECK(blames_plugin(ended));
}

TEST_CASE("an exception is that of the innermost that is known, and its memory may be used again") {
  const PluginCode* code = plugin();
  static int first = 0, second = 0;
  plugin_does([](int) { exception_begins(&first); }, 0);
  engine_does([](int) { exception_begins(&second); }, 0);
  CHECK(thrower_of(&first) == code);
  CHECK(thrower_of(&second) == nullptr);
  CHECK(thrower_of(nullptr) == nullptr);
  plugin_does([](int) { engine_does([](int) { exception_begins(&first); }, 0); }, 0);
  CHECK(thrower_of(&first) == nullptr);
}

}  // namespace plugin_at_work_test
