// The loss of a training step by the sources of the mix that it reads. What ranks know of it
// travels with the sums of the step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "engine/train/step/logits.h"

namespace meshwright::train {

// Of a source in a step, all ranks.
struct SourceLoss {
  int64_t targets = 0;
  double weight = 0;  // of these targets
  double sum = 0;     // of their losses, by their weights
  // As StepResult::loss, over the targets of this source; NaN: it had none.
  double mean() const {
    return weight > 0 ? sum / weight : std::numeric_limits<double>::quiet_NaN();
  }
};

// Not thread-safe. Measures nothing until it is opened.
class SourceLosses {
 public:
  // Of a mix of so many sources, the same on all ranks.
  void open(size_t sources) { found_.resize(sources); }
  // Of a micro-batch, within its forward. `sums`: [sources] float64, of its targets' losses, where
  // these are. The others by source, on this rank.
  struct Part {
    at::Tensor sums;
    std::vector<double> targets, weights;
  };
  void begin_step() { mine_ = {}; }
  void tell(Part part) { told_ = std::move(part); }
  // Behind that forward. `more`: undefined, or what the mean loss of the micro-batch has on top,
  // of which each source has its part by weight.
  void add_told(const at::Tensor& more);

  // What a rank sends: three numbers of each source, the first of them from sums().
  int64_t sources() const { return static_cast<int64_t>(found_.size()); }
  int64_t slots() const { return 3 * sources(); }
  const at::Tensor& sums() const { return mine_.sums; }  // undefined: zeros
  void write(double* slots) const;                       // but for the first ones
  void read(const double* slots);                        // summed over all ranks
  const std::vector<SourceLoss>& found() const { return found_; }
  // Whether the sources' sums are the step's: so it is where a loss is a sum over targets.
  bool add_up_to(double mean_loss) const;

 private:
  Part told_, mine_;  // of the micro-batch, of the step
  std::vector<SourceLoss> found_;
};

// The loss of a micro-batch of several sources, or of one, with what its sources have of it, which
// is told. `targets` and `weights`: this rank's positions of the batch's.
at::Tensor loss_by_source(SourceLosses& sources, RunningModel& net, const MicroBatch& batch,
                          const at::Tensor& output, const at::Tensor& targets,
                          const at::Tensor& weights, const VocabularyShard* shard,
                          SourceLosses::Part counted);

}  // namespace meshwright::train
