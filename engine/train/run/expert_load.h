// How evenly tokens reach the experts of a model, over many steps: a picture for people, JSON for
// programs.
#pragma once

#include <string>
#include <vector>

#include "meshwright/trainer.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::train {

// Adds up the load of steps. It stays empty for a model without experts.
class LoadHistory {
 public:
  void add(const StepResult& result);
  bool empty() const { return total_.empty(); }
  // One row per block, one column per expert (or per several experts where there are more than
  // fit): how high its load stands beside the mean. Of many blocks only the most uneven. No newline
  // at the end.
  std::string draw(const report::Style& style) const;
  // {"steps", "blocks": [{"block", "experts_per_token", "tokens": [...], "imbalance"}]}
  std::string json() const;

 private:
  std::vector<ExpertLoad> total_;
  int64_t steps_ = 0;
};

// Fields of a step's row of metrics.jsonl, empty without experts: "expert_tokens" (of each expert,
// all blocks together), "expert_imbalance" (by block: largest over mean) and "dropped_tokens"
// (assignments that tokens should have had and routers did not make).
std::string load_fields(const StepResult& result);
// "  experts up to 1.24x" the mean, of the most uneven block; empty without experts.
std::string load_words(const StepResult& result);

}  // namespace meshwright::train
