// What a call that runs ranks has beside its work.
#pragma once

#include <signal.h>

#include <atomic>

#include "engine/capi/guard.h"

namespace meshwright::capi {

// LibTorch's generator and its threads are the process's: one run at a time.
class Turn {
 public:
  Turn() {
    if (taken().exchange(true))
      throw misuse("another run, or meshwright_generate(), is under way in this process");
  }
  ~Turn() { taken() = false; }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  static std::atomic<bool>& taken() {
    static std::atomic<bool> one = false;
    return one;
  }
};

// A peer that goes away is a failed write, not a signal that ends the caller's process: while one
// of these lives, for this thread and those that it starts.
class QuietPipe {
 public:
  QuietPipe() {
    sigset_t pending;
    ::sigpending(&pending);
    was_pending_ = ::sigismember(&pending, SIGPIPE) == 1;
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~QuietPipe() {
    const timespec now{};
    if (!was_pending_) ::sigtimedwait(&pipe_, nullptr, &now);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  QuietPipe(const QuietPipe&) = delete;
  QuietPipe& operator=(const QuietPipe&) = delete;

 private:
  sigset_t pipe_, before_;
  bool was_pending_ = false;
};

}  // namespace meshwright::capi
