#include "engine/launch/supervisor.h"

#include <poll.h>

#include <algorithm>
#include <csignal>

#include "engine/launch/attempt.h"
#include "engine/launch/signals.h"

namespace meshwright::launch {

namespace {

using Clock = std::chrono::steady_clock;

// Returns early when a signal comes.
void wait_before_restart(std::chrono::milliseconds pause) {
  for (Clock::time_point end = Clock::now() + pause;
       SignalHandlers::count() == 0 && Clock::now() < end;) {
    if (SignalHandlers::take_stop()) ::raise(SIGSTOP);
    ::poll(nullptr, 0, 20);
  }
}

}  // namespace

int run_local_ranks(const LocalJob& job) {
  constexpr std::chrono::milliseconds kSoon = std::chrono::seconds(1), kFirstPause(250),
                                      kLongestPause = std::chrono::seconds(30);
  SignalHandlers handlers;
  Sink sink(job.out_fd, job.err_fd);
  int code = 0;
  std::chrono::milliseconds pause{0};
  for (int64_t restart = 0;; ++restart) {
    Clock::time_point started = Clock::now();
    if (job.begins) job.begins();
    Attempt attempt(job, sink, restart);
    attempt.run();
    code = attempt.result();
    std::string why = attempt.may_heal();
    if (SignalHandlers::count() > 0 || why.empty() || restart == job.max_restarts) {
      if (!why.empty() && job.max_restarts > 0 && SignalHandlers::count() == 0)
        tell(job, sink, "no restart is left of " + std::to_string(job.max_restarts) + "\n");
      break;
    }
    std::string text = "restart " + std::to_string(restart + 1) + " of " +
                       std::to_string(job.max_restarts) + " after " + why;
    if (job.continues) text += ", " + job.continues();
    bool soon = Clock::now() - started < kSoon;
    pause = soon ? std::clamp(pause * 2, kFirstPause, kLongestPause) : std::chrono::milliseconds(0);
    if (soon)
      text += "; within a second of its start: " + std::to_string(pause.count()) + " ms to wait";
    tell(job, sink, text + "\n");
    wait_before_restart(pause);
    if (SignalHandlers::count() > 0) {
      code = 128 + SignalHandlers::last();
      break;
    }
  }
  if (SignalHandlers::count() > 0 && code == 128 + SignalHandlers::last())
    tell(job, sink, "stopped by " + signal_name(SignalHandlers::last()) + "\n");
  return code;
}

}  // namespace meshwright::launch
