// What a step's row of metrics.jsonl says, for whoever writes rows: JSON lines, CSV, event files,
// monitors.
#pragma once

#include <string>
#include <vector>

#include "meshwright/trainer.h"

namespace meshwright::train {

// What a step cost, beside its result.
struct StepCost {
  double step_ms = 0;
  int64_t memory_bytes = 0;  // peak tensor bytes of this rank
  double data_ms = 0;        // of step_ms: waiting for samples
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
