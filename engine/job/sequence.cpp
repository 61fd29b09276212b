// Sequence parallelism on paper: whether samples divide, and what it saves.
#include <algorithm>

#include "engine/job/plan.h"

namespace meshwright::plan {

bool reads_data(const Options& table) {
  return table.is_set("path") || table.is_set("plugin") || table.is_given("seq_len") ||
         (table.is_given("kind") && table.get_string("kind") == "mock");
}

void check_sequence(const Job& job, const TpPlan& tp) {
  const SharedOptions& shared = job.config.shared;
  int64_t ranks = shared.sizes.tp;
  if (ranks <= 1 || !cuts_sequence(tp)) return;
  for (const char* name : {"dataset", "validation_dataset"}) {
    const Options& table = job.config.table(name);
    int64_t length = table.get_int("seq_len");
    // Tensor parallelism cuts what context parallelism has left of a sample.
    const ContextSplit split(length, shared.sizes.cp, context_balance(shared.context));
    if (!reads_data(table) || split.rows() % ranks == 0) continue;
    const std::string key = std::string(name) + ".seq_len", tp_size = std::to_string(ranks);
    const bool shared_out = shared.sizes.cp > 1;
    Error error(
        ErrorCode::model_does_not_fit,
        (shared_out ? "the " + std::to_string(split.rows()) + " tokens that a rank of cp has of " +
                          key + " = " + std::to_string(length) + " do not divide"
                    : key + " = " + std::to_string(length) + " does not divide") +
            " by distributed.tp_size = " + tp_size +
            ": under sequence parallelism each tensor-parallel rank holds an equal part of "
            "a sample");
    error.key(key).at(table.origin("seq_len"));
    // Each of the chunks of a rank is a multiple of the ranks of tp.
    const int64_t step = ranks * (shared_out ? split.chunks() : 1);
    int64_t down = length / step * step, up = 0;
    if (down > 0) error.help("set " + key + " = " + std::to_string(down));
    if (!__builtin_add_overflow(down, step, &up))
      error.help("set " + key + " = " + std::to_string(up));
    if (job.config.shared.sequence_parallel && tp.source != "custom")
      error.help("set distributed.sequence_parallel = false");
    throw error;
  }
}

std::optional<int64_t> other_activations(const JobPlan& plan, const StrategyConfig& config,
                                         const ModelOutline& part) {
  if (config.shared.sizes.tp <= 1 || !plan.footprint || plan.footprint->bytes.activations == 0 ||
      plan.tp.source == "custom")
    return {};
  if (plan.workload.seq_len % config.shared.sizes.tp != 0) return {};
  StrategyConfig other = config;
  other.shared.sequence_parallel = !config.shared.sequence_parallel;
  other.shared.enable_async_tensor_parallel = false;  // it needs sequence parallelism
  const Strategy& strategy = *plan.strategy.strategy;
  try {
    Diagnostics diagnostics;
    strategy.validate(other, diagnostics);
    if (!diagnostics.ok()) return {};
    TpPlan tp = strategy.translate_tp_plan(
        *plan.outline,
        {other.shared.sizes.tp, other.shared.sequence_parallel, other.shared.tp_plan});
    if (cuts_sequence(tp) == cuts_sequence(plan.tp)) return {};  // it has no effect on this model
    const ShardingRequest asked{part, plan.mesh, tp, other, plan.workload, plan.rank};
    return footprint_here(plan, asked, strategy.plan_sharding(asked)).bytes.activations;
  } catch (const std::exception&) {
    return {};  // what cannot be has no cost
  }
}

}  // namespace meshwright::plan
