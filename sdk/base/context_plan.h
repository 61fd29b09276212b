// How the ranks of cp share out attention, decided once for the plan and the run (semantics 14.4).
// Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/sharding_plan.h"
#include "sdk/base/context_split.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright {

struct ContextPlan {
  ContextMethod method = ContextMethod::all_gather;  // of the `ring` ranks; ulysses: of all
  int64_t ring = 1, ulysses = 1;                     // cp = ring * ulysses
  ContextBalance balance = ContextBalance::head_tail;
  std::string why;  // what "auto" went by; empty: it was written
};

MESHWRIGHT_API ContextBalance context_balance(const ContextOptions& options);
// "all_gather", "ring", "ulysses", or "ring x ulysses".
MESHWRIGHT_API std::string context_method_name(const ContextPlan& plan);
// Bytes that the rank that sends most would send by a plan.
using ContextBytes = std::function<int64_t(const ContextPlan&)>;
// `ranks` of cp; heads of a rank of tp, 0: not known before the run. `sent`: what "auto" compares,
// of this model; without it, what layers without windows send, by their heads. Throws
// Error(model_does_not_fit) for sizes whose product is not `ranks` and for heads that ulysses
// cannot share out, with settings that work.
MESHWRIGHT_API ContextPlan plan_context(const ContextOptions& options, int64_t ranks, int64_t heads,
                                        int64_t kv_heads, const ContextBytes& sent = {});
// The same for a model on its mesh; nullopt: cp has one rank. "auto" goes by its layers where
// seq_len is known, and comes to the same on every rank.
MESHWRIGHT_API std::optional<ContextPlan> plan_context(const ShardingRequest& request);
// What "auto" takes in place of `plan`, which is for ranks on one host, where they are on several:
// there keys cannot be read where they lie, and those of a ring travel while others are computed
// with. What was written stays.
MESHWRIGHT_API ContextPlan across_hosts(ContextPlan plan);

// What each method would send a step and hold at its peak, on the rank asked about.
struct ContextCost {
  std::string method;
  int64_t bytes = 0, transient = 0;
  bool chosen = false;
};
MESHWRIGHT_API std::vector<ContextCost> context_costs(const ShardingRequest& request);

}  // namespace meshwright
