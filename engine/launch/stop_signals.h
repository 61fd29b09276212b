// Signals that ask a run to save and end: Ctrl-C, a terminal that goes away, a batch system.
#pragma once

#include <csignal>
#include <cstdint>

namespace meshwright::launch {

inline constexpr int kStopSignals[] = {SIGINT, SIGHUP, SIGTERM, SIGUSR1};
// From the launcher to a rank that is not at fault: it ends. None takes it as the request to save.
inline constexpr int kEnd = SIGUSR2;

// Whether a signal repeats the request that `first` told so many milliseconds ago, instead of
// asking for an end at once. A batch system signals every process of a job, and our launcher passes
// on what it got: within a fifth of a second all of it is one request. A terminal that goes away is
// told by the kernel, by the shell, and by the kernel again once the shell has ended; after another
// signal it is no request at all, since a user who has pressed Ctrl-C may well close the window.
// For signal handlers.
inline bool same_request(int first, int number, int64_t ms_since_first) {
  constexpr int64_t kSameRequestMs = 200, kHangUpMs = 3000;
  if (ms_since_first <= kSameRequestMs) return true;
  return number == SIGHUP && (first != SIGHUP || ms_since_first <= kHangUpMs);
}

}  // namespace meshwright::launch
