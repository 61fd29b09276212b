// What a training step is measured by beside its result: how far its loss and gradient norm lie
// from the usual, whether its update is left out, how long each rank has worked, and the losses of
// the sources of a mix.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/meta.h"
#include "engine/job/parameter_groups.h"
#include "engine/train/step/source_losses.h"
#include "meshwright/trainer.h"

namespace meshwright::detail {
class DeviceWaits;
}

namespace meshwright::train {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// (value - median) / (1.4826 * median absolute deviation), which is the number of standard
// deviations where values are normally distributed. One spike among the values moves neither, as it
// would a mean and a variance: it would hide the next one. The deviation counts as no less than a
// hundredth of the median, so that a curve that stands still does not make news of its last digit.
// Not finite: fewer than kFewest values, or `value` is not finite.
double z_score(const std::vector<double>& values, double value);
double median_of(std::vector<double> values);  // NaN: of nothing
inline constexpr size_t kWindow = 100, kFewest = 20;

// Of one step.
struct StepFacts {
  double loss_z = kUnknown, grad_norm_z = kUnknown;
  bool skipped = false;      // its update was left out, on all ranks
  bool overflowed = false;   // because of the loss scale
  std::string why;           // rank 0, of a skipped one: "the gradient norm 55.1 is ..."
  bool starts_anew = false;  // so many were left out in a row that the usual is learned anew
  // Inside of collectives; on a device its stream's waits for them, up to the sums of the step.
  double waited_ms = kUnknown;
  // By rank, between the sums of the step before and those of this one: what it has worked itself,
  // without waiting; on a device that of the step before. Empty: one rank, or not known (the first
  // step, on a device the first two).
  std::vector<double> work_ms;
};

class StepMonitor {
 public:
  // As many steps as this may be left out one after the other. What lies that far off for longer is
  // no spike, and leaving out would never end.
  static constexpr int64_t kMostInARow = 10;
  static constexpr int64_t kStepsToGrow = 2000;  // of a loss scale that adapts

  // `skip_above`: run.skip_step_above_z.
  StepMonitor(std::optional<double> skip_above, World& world);

  void begin_step();
  // Right before the sums of the step, of which they are a part: this rank's work, at its place,
  // and 0 elsewhere. Empty: nothing is known.
  int64_t slots() const { return slots_; }
  void write_work(double* slots);
  void read_work(const double* slots);  // summed over all ranks
  // What the losses of the coming step are multiplied by before backward; 1 unless told to.
  void scale_losses(const plan::LossScale& scale);
  double loss_scale() const { return scale_.dynamic ? history_.loss_scale : scale_.start; }
  // Gradients that the scale has made infinite, which a smaller one would not: the step is left
  // out.
  bool overflowed(const StepResult& result) const;
  // Collective where steps may be left out: rank 0 decides for all, whose values may differ in
  // their last bit. Returns whether the step is left out.
  bool judge(const StepResult& result, World& world);
  void end_step();

  const StepFacts& facts() const { return facts_; }  // of the last step
  SourceLosses& sources() { return sources_; }       // of a mix
  // What is usual, for checkpoints: a run that goes on judges as an unbroken one.
  const checkpoint::StepHistory& history() const { return history_; }
  void restore(checkpoint::StepHistory history);
  // The optimizer's updates of so many steps.
  int64_t updates(int64_t steps) const { return steps - history_.left_out; }

 private:
  using Clock = std::chrono::steady_clock;
  // Since the last call.
  double work();
  std::string reason(const StepResult& result) const;
  void remember(const StepResult& result);
  void adapt(bool overflowed);

  std::optional<double> skip_above_;
  int64_t rank_, slots_;
  at::Device device_;
  detail::DeviceWaits& device_waits_;
  bool warm_ = false;              // on a device: a step is over
  double device_work_ = kUnknown;  // of the step before
  checkpoint::StepHistory history_;
  StepFacts facts_;
  Clock::time_point since_, began_;
  int64_t waited_since_ = 0, waited_began_ = 0;
  double after_sums_ = kUnknown;  // of the step before
  plan::LossScale scale_;
  SourceLosses sources_;
};

class Stages;

// Collective. Throws Error(nonfinite), with what is known of where such values come from. `stages`:
// of a pipeline, else nullptr.
[[noreturn]] void throw_nonfinite(const StepResult& result, ParallelModel& model,
                                  const ModelOutline& outline, const Stages* stages,
                                  double loss_scale, World& world);

}  // namespace meshwright::train
