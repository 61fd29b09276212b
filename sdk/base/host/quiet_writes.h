// What signals may and may not do to a process that is not ours while it is in a call.
#pragma once

#include <signal.h>

#include <cstddef>
#include <ctime>
#include <memory>

namespace meshwright::base {

// A peer that goes away (SIGPIPE) and a file that grows beyond RLIMIT_FSIZE (SIGXFSZ) are failed
// writes, not signals that end the caller's process: while one of these lives, for this thread and
// those that it starts. Handlers stay as they are, and a signal that somebody else sends still
// comes in the end. The program itself ignores both (cli/run.cpp).
class QuietWrites {
 public:
  QuietWrites() {
    sigset_t pending;
    ::sigpending(&pending);
    ::sigemptyset(&ours_);
    sigset_t both;
    ::sigemptyset(&both);
    for (int signal : {SIGPIPE, SIGXFSZ}) {
      ::sigaddset(&both, signal);
      if (::sigismember(&pending, signal) == 0) ::sigaddset(&ours_, signal);
    }
    ::pthread_sigmask(SIG_BLOCK, &both, &before_);
  }
  ~QuietWrites() {
    const timespec now{};
    while (::sigtimedwait(&ours_, nullptr, &now) > 0) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  QuietWrites(const QuietWrites&) = delete;
  QuietWrites& operator=(const QuietWrites&) = delete;

 private:
  sigset_t ours_, before_;  // `ours_`: did not wait before
};

// A stack for handlers with SA_ONSTACK, where the thread has none: while oneDNN multiplies matrices
// a handler's frame on the thread's own would be written into the heap (oneDNN issue 4845).
class HandlerStack {
 public:
  HandlerStack() {
    if (::sigaltstack(nullptr, &before_) != 0 || (before_.ss_flags & SS_DISABLE) == 0) return;
    memory_ = std::make_unique_for_overwrite<char[]>(kBytes);
    const stack_t ours{memory_.get(), 0, kBytes};
    ::sigaltstack(&ours, nullptr);
  }
  ~HandlerStack() {
    if (memory_) ::sigaltstack(&before_, nullptr);
  }
  HandlerStack(const HandlerStack&) = delete;
  HandlerStack& operator=(const HandlerStack&) = delete;

 private:
  static constexpr size_t kBytes = size_t{64} << 10;
  stack_t before_{};
  std::unique_ptr<char[]> memory_;
};

}  // namespace meshwright::base
