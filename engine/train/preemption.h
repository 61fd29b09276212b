// The wish of a cluster, or of a user, that this process end soon: SIGTERM or SIGUSR1.
#pragma once

#include <csignal>
#include <string>

namespace meshwright::train {

// While an object lives, the first of these signals only is noted, for the loop to save and end at its next step; a second one ends the
// process at once, as it would have without us. Within a fifth of a second it is the same wish told twice: a batch system signals every
// process of a job, and our launcher passes on what it got. A SIGTERM that was ignored stays ignored.
//
// For the program's own training loop, one object at a time: the handlers are the process's, and a library leaves those alone.
class Preemption {
 public:
  Preemption();
  ~Preemption();
  Preemption(const Preemption&) = delete;
  Preemption& operator=(const Preemption&) = delete;
  bool asked() const;
  // "SIGTERM"; empty: none came.
  std::string signal() const;
  // The handlers stay until the process ends, which is soon: a wish told twice must not end it otherwise after it has been granted.
  void stay() { stays_ = true; }

 private:
  bool stays_ = false;
  static constexpr int kMany = 2;
  static constexpr int kSignals[kMany] = {SIGTERM, SIGUSR1};
  struct sigaction old_[kMany];
};

}  // namespace meshwright::train
