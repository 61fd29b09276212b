// Signals that ask for an end, in a process of their own each.
#include "engine/train/preemption.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

using meshwright::train::Preemption;

namespace {

// The wait status of a child that runs `body` and exits with what it returns.
int status_of(const std::function<int()>& body) {
  pid_t pid = ::fork();
  if (pid == 0) {
    std::signal(SIGTERM, SIG_DFL);
    std::signal(SIGUSR1, SIG_DFL);
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

bool exited(int status, int code) { return WIFEXITED(status) && WEXITSTATUS(status) == code; }
bool ended_by(int status, int signal) { return WIFSIGNALED(status) && WTERMSIG(status) == signal; }

}  // namespace

TEST_CASE("the first signal is noted by name, the same wish told twice is one, a later one ends the process by itself") {
  for (int first : {SIGTERM, SIGUSR1})
    for (int second : {SIGTERM, SIGUSR1}) {
      CAPTURE(first);
      CAPTURE(second);
      std::string name = first == SIGTERM ? "SIGTERM" : "SIGUSR1";
      CHECK(exited(status_of([&] {
                     Preemption preemption;
                     if (preemption.asked() || !preemption.signal().empty()) return 1;
                     ::raise(first);
                     if (!preemption.asked() || preemption.signal() != name) return 2;
                     ::raise(second);
                     return preemption.signal() == name ? 42 : 3;
                   }),
                   42));
      CHECK(ended_by(status_of([&] {
                       Preemption preemption;
                       ::raise(first);
                       ::usleep(250000);
                       ::raise(second);
                       ::pause();
                       return 0;
                     }),
                     second));
    }
}

TEST_CASE("before and after the signals do what they did, and an ignored SIGTERM stays ignored") {
  for (int signal : {SIGTERM, SIGUSR1}) {
    CHECK(ended_by(status_of([&] {
                     {
                       Preemption preemption;
                     }
                     ::raise(signal);
                     return 0;
                   }),
                   signal));
    // A new object starts without the wish that an earlier one heard.
    CHECK(exited(status_of([&] {
                   {
                     Preemption preemption;
                     ::raise(signal);
                   }
                   return Preemption().asked() ? 1 : 42;
                 }),
                 42));
  }
  CHECK(exited(status_of([&] {
                 std::signal(SIGTERM, SIG_IGN);
                 std::signal(SIGUSR1, SIG_IGN);
                 Preemption preemption;
                 ::raise(SIGTERM);
                 if (preemption.asked()) return 1;
                 ::raise(SIGUSR1);
                 return preemption.signal() == "SIGUSR1" ? 42 : 2;
               }),
               42));
}
