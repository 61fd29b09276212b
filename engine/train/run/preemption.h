// What somebody outside asks of a run: that it save now, or end soon.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <thread>

#include "engine/launch/supervisor.h"

namespace meshwright::train {

// That it save now: a file in the run's folder. Of the rank that leads. `touch
// runs/first/checkpoint_now` or `meshwright checkpoint now` make the file; it is gone once the run
// has begun to save.
class SaveRequest {
 public:
  explicit SaveRequest(const std::filesystem::path& run);
  // Looks at most twice a second: the folder may lie on a network's file system.
  bool asked();
  // The request is being granted. A file that cannot be removed is not looked at again, or every
  // step would save: `warn` hears of it.
  void grant(const std::function<void(const std::string&)>& warn);

 private:
  std::filesystem::path file_;
  std::chrono::steady_clock::time_point looked_{};
  bool ignored_ = false;
};

// The request of a user, of a terminal that goes away, or of a cluster that this process end soon:
// SIGINT, SIGHUP, SIGTERM or SIGUSR1. While it lives, these signals come on a thread of its own:
// the thread that makes it, and all that this one starts, block them. oneDNN's matrix products in
// float32 use the stack pointer as one more register (oneDNN issue 4845, in LibTorch 2.11), so a
// handler that interrupts one writes its frame into the heap.
class SignalThread {
 public:
  SignalThread();
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  const pid_t process_;
  sigset_t before_;
  int over_;  // an eventfd: nothing of it has to be taken down in a child by fork()
  std::thread thread_;
};

// While an object lives, the first of these signals only is noted, for the loop to save and end at
// its next step; a second one that is not the same request again (engine/launch/supervisor.h) ends
// the process at once, as it would have without us. What was ignored (nohup, a shell's background
// job) stays ignored.
//
// For the program's own training loop, one object at a time: the handlers are the process's, and a
// library leaves those alone.
class Preemption {
 public:
  // `speaks`: at once says on standard error what a first Ctrl-C does.
  explicit Preemption(bool speaks = false);
  ~Preemption();
  Preemption(const Preemption&) = delete;
  Preemption& operator=(const Preemption&) = delete;
  bool asked() const;
  // "SIGTERM"; empty: none came.
  static std::string signal();
  // The handlers stay until the process ends, which is soon: a request told twice must not end it
  // otherwise after it has been granted.
  void stay() { stays_ = true; }

 private:
  bool stays_ = false;
  static constexpr int kMany = std::size(launch::kStopSignals);
  struct sigaction old_[kMany];
};

}  // namespace meshwright::train
