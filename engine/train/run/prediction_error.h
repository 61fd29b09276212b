// What was predicted of a run beside what it took: seconds of a step, and bytes of rank 0.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/train/run/attached.h"
#include "engine/train/run/step_row.h"
#include "meshwright/trainer.h"

namespace meshwright::train {

class PredictionError {
 public:
  // Steps at the beginning of a run whose time says little: memory is taken, libraries warm up.
  static constexpr int64_t kFirst = 3;
  // Times that are kept: the newest. Their median moves no more with further ones.
  static constexpr size_t kMost = 65'536;

  PredictionError() = default;
  // Predicts a step of the trainer's rank on the machine of report.machine, else on the one whose
  // device the driver reports; without either memory alone, as the plan has it. What cannot be
  // predicted is left out: a model without sizes, memory that lies elsewhere than the tensors that
  // the run counts. `ranks_a_host`: at most. Not collective; throws nothing for a machine that
  // cannot be had: warning() says why.
  PredictionError(const Job& job, Trainer& trainer, int64_t ranks_a_host);
  const std::string& warning() const { return warning_; }  // empty: none

  // A step that was trained, with all of its cost. `quiet`: nothing was saved or evaluated beside
  // it or right before; only such steps count. `timed`: nor did a trace slow it down.
  void add(const StepCost& cost, bool quiet, bool timed);

  // What the run says at its end: "predicted beside measured: ..."; empty: there is nothing to
  // compare.
  std::string line() const;
  // Adds "predicted" to what plan.json holds and, once steps have been measured, "measured" and
  // "ratio" (measured over predicted). null: not known.
  void put_into(boost::json::object& plan) const;

 private:
  std::optional<double> seconds() const;  // of a step, the median of what counts

  std::optional<PredictedStep> predicted_;
  int64_t predicted_bytes_ = 0;  // 0: not known
  std::string warning_;
  int64_t steps_ = 0;
  std::vector<double> times_, exposed_;  // milliseconds, of the same steps
  size_t timed_ = 0;
  int64_t bytes_ = 0;  // the most of a step
};

}  // namespace meshwright::train
