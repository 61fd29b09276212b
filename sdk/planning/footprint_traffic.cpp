#include <algorithm>

#include "checkpoint_scope.h"
#include "footprint_parts.h"
#include "sdk/base/context_plan.h"
#include "sdk/base/pipeline.h"

namespace meshwright::footprint {
namespace {

// Rows to the experts and back, forward and backward, each with its routing weight on the way there
// and its gradient on the way back. Balanced routing: every token goes to its active experts, an
// equal part of them on each rank of ep.
void add_all_to_all_rows(const ShardingRequest& request, const Axis& ep, int64_t passes,
                         int64_t forward, int64_t backward, ScheduleBuilder& schedule) {
  const MoeOutline& moe = *request.outline.moe;
  int64_t element = dtype_size(precision_of(request).param),
          assignments = times(tokens_of(request), moe.active_experts);
  int64_t rows = times(assignments, request.outline.hidden_size, element);
  // How many rows each expert gets from whom; layers that are computed again know it, but where
  // they choose again.
  const MoeOptions& options = request.config.shared.moe;
  const bool chosen_once = options.ignore_router_for_ac || options.fake_balanced_gate;
  schedule.add(ep, Phase::forward, "all_gather", chosen_once ? passes : forward,
               times(ep.size, moe.experts, 8));
  for (const auto& [phase, count] :
       {std::pair(Phase::forward, forward), {Phase::backward, backward}}) {
    schedule.add(ep, phase, "all_to_all", count, plus(rows, times(assignments, element)));
    schedule.add(ep, phase, "all_to_all", count, rows);
  }
}

// Every rank gets the tokens, float32 weights and choices of all, and float32 sums are shared out.
void add_all_gather_rows(const ShardingRequest& request, const Axis& ep, int64_t forward,
                         int64_t backward, ScheduleBuilder& schedule) {
  int64_t element = dtype_size(precision_of(request).param),
          tokens = times(ep.size, tokens_of(request));
  int64_t assignments = times(tokens, request.outline.moe->active_experts),
          width = request.outline.hidden_size;
  schedule.add(ep, Phase::forward, "all_gather", forward,
               times(ep.size, 8));  // the number of tokens
  schedule.add(ep, Phase::forward, "all_gather", forward, times(tokens, width, element));
  schedule.add(ep, Phase::forward, "all_gather", forward, times(assignments, 4));
  schedule.add(ep, Phase::forward, "all_gather", forward, times(assignments, 8));
  schedule.add(ep, Phase::forward, "reduce_scatter", forward, times(tokens, width, 4));
  schedule.add(ep, Phase::backward, "all_gather", backward, times(tokens, width, 4));
  schedule.add(ep, Phase::backward, "reduce_scatter", backward, times(assignments, 4));
  schedule.add(ep, Phase::backward, "reduce_scatter", backward, times(tokens, width, element));
}

void add_expert_rows(const ShardingRequest& request, const ModuleIndex& index,
                     ScheduleBuilder& schedule) {
  if (!request.mesh.moe_mesh || !request.outline.moe) return;
  Axis ep{"ep", request.mesh.moe_mesh->size("ep"), 0};
  for (const ModuleOutline& module : request.outline.modules) {
    if (module.kind != ModuleKind::experts) continue;
    const int64_t passes = passes_of(request),
                  backward = index.has_backward(module.name) ? passes : 0,
                  forward = times(passes, forward_runs(request, index, module.name));
    if (request.config.shared.moe.dispatcher == TokenDispatcher::all_gather)
      add_all_gather_rows(request, ep, forward, backward, schedule);
    else
      add_all_to_all_rows(request, ep, passes, forward, backward, schedule);
  }
}

}  // namespace

int64_t tokens_of(const ShardingRequest& request) {
  const Workload& work = request.workload;
  int64_t batch = work.local_batch, length = work.seq_len, cp = 1;
  if (pipeline_size(request) > 1) {
    const PipelineOptions& options = request.config.shared.pipeline;
    batch = options.microbatch_size;
    length = options.seq_len.value_or(length);
  }
  if (request.mesh.device_mesh) cp = request.mesh.device_mesh->size("cp");
  if (cp > 1 && length > 0)
    length = ContextSplit(length, cp, context_balance(request.config.shared.context)).rows();
  return times(batch, length);
}

int64_t message_bytes(const ShardingRequest& request) {
  const DType type = request.config.shared.pipeline.dtype.value_or(precision_of(request).output);
  const int64_t cut = request.mesh.device_mesh && cuts_sequence(request.tp)
                          ? request.mesh.device_mesh->size("tp")
                          : 1;
  return times(tokens_of(request) / cut, request.outline.hidden_size, dtype_size(type));
}

bool in_attention(std::string_view module) {
  return module.find("attn") != std::string_view::npos ||
         module.find("attention") != std::string_view::npos;
}

int64_t forward_runs(const ShardingRequest& request, const ModuleIndex& index,
                     std::string_view module) {
  std::string_view layer = index.layer_of(module);
  if (layer.empty() || !index.has_backward(module) ||
      request.config.shared.activation_checkpointing == ActivationCheckpointing::none)
    return 1;
  if (!checkpoint_scope::holds(request.config.shared.activation_checkpointing_scope, layer))
    return 1;
  if (request.config.shared.activation_checkpointing == ActivationCheckpointing::full) return 2;
  return in_attention(module.substr(layer.size())) ? 1 : 2;
}

void add_common_rows(const ShardingRequest& request, const std::vector<int64_t>& gradient_elements,
                     DType reduce, ScheduleBuilder& schedule) {
  schedule.of_activations();
  add_tp_activations(request, schedule);
  add_partial_gradients(request, gradient_elements, reduce, schedule);
  if (tokens_of(request) == 0) return;
  ModuleIndex index(request.outline);
  add_expert_rows(request, index, schedule);
  if (!request.mesh.device_mesh) return;
  add_context_rows(request, index, schedule);
}

}  // namespace meshwright::footprint

namespace meshwright {

bool cuts_sequence(const TpPlan& tp) {
  return std::any_of(tp.entries.begin(), tp.entries.end(), [](const TpEntry& entry) {
    return entry.style.input == TpLayout::shard_1 || entry.style.output == TpLayout::shard_1;
  });
}

CommunicationSchedule pipeline_schedule(const ShardingRequest& request, const PipelinePlan& plan) {
  using namespace footprint;
  if (pipeline_size(request) == 1) return {};
  const Mesh& mesh = *request.mesh.device_mesh;
  Axis pp{"pp", mesh.size("pp"), mesh.coordinate(request.rank, "pp")};
  const int64_t bytes = message_bytes(request), passes = passes_of(request);
  ScheduleBuilder schedule;
  // Stages of one rank hand over for free.
  for (size_t s = 0; s + 1 < plan.stages.size(); ++s) {
    const PipelineStage &here = plan.stages[s], &next = plan.stages[s + 1];
    if (here.rank == next.rank) continue;
    if (here.rank == pp.index) schedule.add(pp, Phase::forward, "send", passes, bytes);
    if (next.rank == pp.index && next.sends_gradient)
      schedule.add(pp, Phase::backward, "send", passes, bytes);
  }
  return schedule.rows();
}

}  // namespace meshwright
