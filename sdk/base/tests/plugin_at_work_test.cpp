// Whose fault a crash is, by the instruction and by what the thread was called for, and whose an
// exit() is. Functions in sections of their own play the plugin and the engine; all happen in
// children.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "sdk/base/plugin_at_work.h"
#include "sdk/base/rank_thread.h"

using namespace meshwright::detail;

namespace plugin_at_work_test {

#define PRETENDS(owner) __attribute__((noinline, section(#owner)))
PRETENDS(pretended_plugin) void plugin_crashes() { __builtin_trap(); }
PRETENDS(pretended_engine) void engine_crashes() { __builtin_trap(); }
void library_crashes() { __builtin_trap(); }  // of neither

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
bool blames_plugin(const Ended& ended, const std::string& doing) {
  return WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 2 &&
         ended.said.starts_with("error[E0421]: the plugin pretended 1.0.0 (/nowhere) crashed in " +
                                doing + ": ");
}
bool blames_nobody(const Ended& ended) {
  return WIFSIGNALED(ended.status) && WTERMSIG(ended.status) == SIGILL && ended.said.empty();
}

TEST_CASE(
    "a crash is that of whose instruction it was, and elsewhere of the plugin that was called") {
  const PluginCode* code = plugin();
  struct Row {
    void (*crash)();
    const char* call;   // nullptr: none
    const char* doing;  // that is told; nullptr: nobody is blamed
  };
  for (const Row& row :
       {Row{plugin_crashes, "end_step", "end_step"}, Row{library_crashes, "end_step", "end_step"},
        // Nothing of its code is known yet.
        Row{library_crashes, "being loaded", "being loaded"},
        Row{engine_crashes, "end_step", nullptr},
        Row{plugin_crashes, nullptr, "code that it left behind"},
        Row{engine_crashes, nullptr, nullptr}, Row{library_crashes, nullptr, nullptr}}) {
    CAPTURE(row.call);
    CAPTURE(row.doing);
    const Ended ended = in_child([&] {
      if (row.call == nullptr) return row.crash();
      PluginCall call(code, row.call);
      row.crash();
    });
    CHECK((row.doing != nullptr ? blames_plugin(ended, row.doing) : blames_nobody(ended)));
  }
  CHECK(blames_nobody(in_child([&] {
    PluginCall call(code, "summon_full_parameters");
    PluginCall engine(nullptr, nullptr);
    library_crashes();
  })));
}

TEST_CASE("threads that crash together are told once, and so is a crash in what follows") {
  plugin();
  const auto crash_twice = [] {
    std::thread other([] {
      ::usleep(20'000);
      plugin_crashes();
    });
    plugin_crashes();
    other.join();
  };
  const auto told_once = [](const Ended& ended) {
    return blames_plugin(ended, "code that it left behind") &&
           ended.said.find("error[", 1) == std::string::npos;
  };
  // The handler that was there before takes its time, or crashes.
  CHECK(told_once(in_child(crash_twice, [](int) { ::usleep(100'000); })));
  CHECK(told_once(in_child(crash_twice, [](int) { library_crashes(); })));
}

TEST_CASE("what is told of a rank that is a thread names it, and not the process's") {
  this_is_rank(3);
  std::string thread, nested, other;
  std::thread([&] {
    const RankThread outer(1);
    {
      const RankThread inner(0);
      nested = on_this_rank();
    }
    thread = on_this_rank();
  }).join();
  std::thread([&] { other = on_this_rank(); }).join();
  this_is_rank(-1);
  CHECK(thread == ", on rank 1");
  CHECK(nested == ", on rank 0");
  CHECK(other == ", on rank 3");
}

TEST_CASE("exit() is a plugin's, in any of its threads, before anything is taken down") {
  const PluginCode* code = plugin();
  for (const bool of_thread : {false, true}) {
    CAPTURE(of_thread);
    const Ended ended = in_child([&] {
      std::atexit([] { static_cast<void>(::write(2, "a destructor ran", 16)); });
      this_is_rank(3);
      PluginCall call(code, "end_step");
      if (of_thread) std::thread([] { std::exit(0); }).join();
      std::exit(0);
    });
    CHECK(WIFEXITED(ended.status));
    CHECK(WEXITSTATUS(ended.status) == 2);
    CHECK(ended.said.starts_with(
        "error[E0424]: the plugin pretended 1.0.0 (/nowhere) called exit() in " +
        std::string(of_thread ? "the middle of its work" : "end_step") + ", on rank 3\n"));
    CHECK(ended.said.find("destructor") == std::string::npos);
  }
}

}  // namespace plugin_at_work_test
