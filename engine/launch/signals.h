// What signals the program hears while ranks run.
#pragma once

#include <csignal>
#include <string>

namespace meshwright::launch {

// Handlers of ours, put back by the destructor. What was ignored (nohup, a shell's background job)
// stays ignored, but for SIGCHLD; what was blocked is not meanwhile. One at a time in a process,
// which has one thread; what they hear is asked of them.
class SignalHandlers {
 public:
  SignalHandlers();
  ~SignalHandlers();
  SignalHandlers(const SignalHandlers&) = delete;
  SignalHandlers& operator=(const SignalHandlers&) = delete;
  // Signals that ask for an end; one that repeats the same request (stop_signals.h) does not count.
  static int count();
  static int last();  // of those counted; 0: none
  // Whether SIGTSTP came since this was asked last.
  static bool take_stop();

 private:
  static constexpr int kMany = 6;
  static constexpr int kSignals[kMany] = {SIGINT, SIGHUP, SIGTERM, SIGUSR1, SIGTSTP, SIGPIPE};
  struct sigaction old_[kMany], old_child_;
  sigset_t old_mask_;
};

// "signal 9 (SIGKILL)"
std::string signal_name(int number);

}  // namespace meshwright::launch
