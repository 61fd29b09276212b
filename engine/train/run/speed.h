// How well the ranks use what they compute on: model FLOPs against the peak of all of them, and
// which rank holds up the others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/train/run/slow_rank.h"
#include "engine/train/run/step_row.h"
#include "meshwright/trainer.h"

namespace meshwright::train {

// Operations a second of large products in a dtype of so many bytes, on this thread's cores:
// measured, in a tenth of a second or two. Of 2 bytes: that of float32 where it is the higher one.
double measured_rate(double width);

class Speed {
 public:
  Speed() = default;
  // Collective. What every rank can do: its device's peak, by the machine table
  // (configs/machines), or the measured rate of its cores, while the others measure theirs.
  // `seq_len`: tokens of a sample.
  Speed(const Job& job, Trainer& trainer, int64_t seq_len);
  // The fields of a step's cost that depend on the other ranks and on the model. `positions`: of
  // the step, without what pads; not given: as many as samples have.
  void fill(StepCost& cost, Trainer& trainer, std::optional<int64_t> positions = {});
  // On the rank that speaks, once a step: what is out of the ordinary. Most often nothing.
  std::vector<std::string> lines(Trainer& trainer, const StepResult& result);
  int64_t ranks_a_host() const { return ranks_a_host_; }  // at most

 private:
  double flop_a_token_ = kNone;
  double tokens_ = kNone, peak_ = kNone;  // of a step, of all ranks
  std::string exceeded_;                  // what is to be told once of a peak that was too low
  SlowRanks slow_;
  int64_t ranks_a_host_ = 1;
};

}  // namespace meshwright::train
