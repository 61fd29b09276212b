// Signals that ask for an end, in a process of their own each.
#include "engine/train/run/preemption.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/train/run/comm_trace.h"
#include "meshwright/parallel/testing.h"

namespace preemption_test {

using meshwright::launch::kStopSignals;
using meshwright::launch::same_request;
using meshwright::train::Preemption;

namespace {

// A child that runs `body` and exits with what it returns.
pid_t start(const std::function<int()>& body) {
  pid_t pid = ::fork();
  if (pid == 0) {
    for (int signal : kStopSignals) std::signal(signal, SIG_DFL);
    ::_exit(body());
  }
  return pid;
}
// Its wait status.
int status_of(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}
int status_of(const std::function<int()>& body) { return status_of(start(body)); }

bool exited(int status, int code) { return WIFEXITED(status) && WEXITSTATUS(status) == code; }
bool ended_by(int status, int signal) { return WIFSIGNALED(status) && WTERMSIG(status) == signal; }

}  // namespace

TEST_CASE(
    "the first signal is noted by name, the same request told twice is one, a later one ends the "
    "process by itself") {
  struct Pair {
    int first, second;
    pid_t at_once, later;  // later: 0 where it is not asked
  };
  std::vector<Pair> pairs;  // all wait beside each other
  for (int first : kStopSignals)
    for (int second : kStopSignals) {
      std::string name = std::string("SIG") + ::sigabbrev_np(first);
      pairs.push_back({first, second, start([&] {
                         Preemption preemption;
                         if (preemption.asked() || !preemption.signal().empty()) return 1;
                         ::raise(first);
                         if (!preemption.asked() || preemption.signal() != name) return 2;
                         ::raise(second);
                         return preemption.signal() == name ? 42 : 3;
                       }),
                       0});
      if (second == SIGHUP) continue;  // below
      pairs.back().later = start([&] {
        Preemption preemption;
        ::raise(first);
        ::usleep(250000);
        ::raise(second);
        ::pause();
        return 0;
      });
    }
  for (const Pair& pair : pairs) {
    CAPTURE(pair.first);
    CAPTURE(pair.second);
    CHECK(exited(status_of(pair.at_once), 42));
    if (pair.later != 0) CHECK(ended_by(status_of(pair.later), pair.second));
  }
}

TEST_CASE(
    "a terminal that goes away: one request for some seconds, and no hurry after another signal") {
  CHECK(same_request(SIGHUP, SIGHUP, 2900));
  CHECK(!same_request(SIGHUP, SIGHUP, 3100));
  for (int other : {SIGINT, SIGTERM, SIGUSR1}) {
    CHECK(same_request(other, SIGHUP, 60000));
    CHECK(!same_request(SIGHUP, other, 201));
    CHECK(same_request(SIGHUP, other, 200));
  }
  CHECK(exited(status_of([&] {
                 Preemption preemption;
                 ::raise(SIGHUP);
                 ::usleep(250000);
                 ::raise(SIGHUP);
                 return preemption.signal() == "SIGHUP" ? 42 : 1;
               }),
               42));
}

TEST_CASE(
    "what a first Ctrl-C does is said at once, by the one that speaks, and by nobody for other "
    "signals") {
  for (bool speaks : {true, false})
    for (int signal : kStopSignals) {
      int ends[2];
      REQUIRE(::pipe(ends) == 0);
      CHECK(exited(status_of([&] {
                     ::dup2(ends[1], 2);
                     Preemption preemption(speaks);
                     ::raise(signal);
                     ::raise(signal);
                     return 42;
                   }),
                   42));
      ::close(ends[1]);
      char text[200] = "";
      ssize_t n = ::read(ends[0], text, sizeof text);
      ::close(ends[0]);
      std::string said(text, static_cast<size_t>(std::max<ssize_t>(n, 0)));
      CHECK(said == (speaks && signal == SIGINT
                         ? "SIGINT: saving after this step; Ctrl-C again ends at once\n"
                         : ""));
    }
}

TEST_CASE("before and after the signals do what they did, and what was ignored stays ignored") {
  for (int signal : kStopSignals) {
    CHECK(ended_by(status_of([&] {
                     {
                       Preemption preemption;
                     }
                     ::raise(signal);
                     return 0;
                   }),
                   signal));
    // A new object starts without the request that an earlier one heard.
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
                 for (int signal : kStopSignals) std::signal(signal, SIG_IGN);
                 Preemption preemption;
                 for (int signal : {SIGTERM, SIGINT, SIGHUP}) ::raise(signal);
                 if (preemption.asked()) return 1;
                 ::raise(SIGUSR1);
                 return preemption.signal() == "SIGUSR1" ? 42 : 2;
               }),
               42));
}

TEST_CASE("a child by fork() neither keeps a rank from ending nor speaks for it") {
  using meshwright::launch::kEnd;
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("comm_trace_" + std::to_string(::getpid()));
  auto forked = [] {
    const pid_t pid = ::fork();
    while (pid == 0) ::pause();
    return pid;
  };
  pid_t left = -1;
  meshwright::run_ranks(2, [&](const std::shared_ptr<meshwright::World>& world) {
    if (world->rank() != 0) return;
    const Preemption preemption;
    meshwright::train::CommTrace trace(*world, folder);
    trace.watch([] { return std::string(); });
    for (int signal : {kEnd, SIGTERM}) {  // as their group may get it
      const pid_t child = forked();
      ::kill(child, signal);
      CHECK(ended_by(status_of(child), signal));
    }
    CHECK(!preemption.asked());
    left = forked();
  });
  CHECK(!std::filesystem::exists(folder));
  ::kill(left, SIGKILL);
  status_of(left);
}

}  // namespace preemption_test
