#include "sdk/conformance/runner.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>

extern char** environ;

namespace meshwright::conformance {
namespace {

constexpr size_t kMaxOutput = size_t{64} << 10;

struct Pipe {
  int ends[2] = {-1, -1};
  Pipe() {
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error(std::string("pipe: ") + std::strerror(errno));
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close(0);
    close(1);
  }
  void close(int end) {
    if (ends[end] >= 0) ::close(ends[end]);
    ends[end] = -1;
  }
};

}  // namespace

ChildResult run_child(const std::vector<std::string>& arguments, double seconds) {
  Pipe pipe;
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, pipe.ends[1], 1);
  ::posix_spawn_file_actions_adddup2(&actions, pipe.ends[1], 2);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  pid_t child = 0;
  int failed = ::posix_spawn(&child, argv[0], &actions, &attributes, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (failed != 0) throw std::runtime_error(arguments[0] + ": " + std::strerror(failed));
  pipe.close(1);

  ChildResult result;
  auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  auto left_ms = [&] {
    return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count());
  };
  int status = 0;
  bool ended = false;
  // The output ends with the child, or with the last process that it leaves behind; the child's own end counts.
  for (bool open = true; !ended;) {
    int left = left_ms();
    if (left <= 0) {
      result.timed_out = true;
      break;
    }
    struct pollfd waiting{pipe.ends[0], POLLIN, 0};
    if (open && ::poll(&waiting, 1, std::min(left, 50)) > 0) {
      char buffer[4096];
      ssize_t n = ::read(pipe.ends[0], buffer, sizeof buffer);
      if (n > 0 && result.output.size() < kMaxOutput) result.output.append(buffer, static_cast<size_t>(n));
      if (n <= 0) open = false;
      if (n > 0) continue;
    }
    if (!open) ::usleep(1000);
    ended = ::waitpid(child, &status, WNOHANG) == child;
  }
  ::kill(-child, SIGKILL);
  if (!ended) ::waitpid(child, &status, 0);
  // What was still in the pipe.
  char buffer[4096];
  ::fcntl(pipe.ends[0], F_SETFL, O_NONBLOCK);
  for (ssize_t n; result.output.size() < kMaxOutput && (n = ::read(pipe.ends[0], buffer, sizeof buffer)) > 0;)
    result.output.append(buffer, static_cast<size_t>(n));
  if (!result.timed_out && WIFEXITED(status)) result.exit_status = WEXITSTATUS(status);
  if (!result.timed_out && WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  return result;
}

}  // namespace meshwright::conformance
