// What a step's row of metrics.jsonl says, for whoever writes rows: JSON lines, CSV, event files,
// monitors.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "meshwright/trainer.h"

namespace meshwright::train {

inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// What a step cost, beside its result, and how it lies among the steps before. kNone: not known.
struct StepCost {
  double step_ms = 0;
  int64_t memory_bytes = 0;  // peak tensor bytes of this rank
  double data_ms = 0;        // of step_ms: waiting for samples
  int64_t ranks = 1;
  double mfu = kNone;              // of the model, as a share of the ranks' peak: 0.41
  double exposed_comm_ms = kNone;  // of step_ms: this rank did nothing but communicate
  int64_t slowest_rank = -1;       // -1: not known
  double slowest_ms = kNone;       // that it worked longer than the median of the others
  // What ranks worked in the step without waiting: the median, the least and the most.
  double rank_work_ms = kNone, rank_work_ms_least = kNone, rank_work_ms_most = kNone;
  double loss_z = kNone, grad_norm_z = kNone;
  bool skipped = false;  // its update was left out (run.skip_step_above_z)
};

struct Metric {
  const char* name;    // "loss", as in metrics.jsonl
  double value;        // not finite: there is none
  const char* format;  // of printf: "%.9g"
};

// In the order of the row, without "step" and "completed_steps".
std::vector<Metric> step_metrics(const StepResult& result, const StepCost& cost);

// As JSON: a number, or null for what is not finite.
std::string metric_text(const Metric& metric);

}  // namespace meshwright::train
