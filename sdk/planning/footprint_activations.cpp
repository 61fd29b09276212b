#include <algorithm>
#include <set>
#include <string>

#include "checkpoint_scope.h"
#include "footprint_parts.h"
#include "pipeline_memory.h"

namespace meshwright::footprint {
namespace {

// Linears that write back to the residual stream: their output is an addend and is not kept.
bool closes_block(std::string_view module) {
  std::string_view name = module.substr(module.rfind('.') + 1);
  return name == "o_proj" || name == "dense" || name == "out_proj" || name == "down_proj" ||
         name == "fc2";
}

// Elements of a token in one layer, or in several.
struct Saved {
  int64_t stream = 0;     // the layer's input
  int64_t norms = 0;      // inputs of norms: the residual stream
  int64_t inputs = 0;     // inputs of attention and mlp
  int64_t attention = 0;  // inside attention
  int64_t mlp = 0;        // inside mlp and experts
  int64_t outputs = 0;    // of Linears, whose gradients wait where backward is split
  int64_t closing_attention = 0,
          closing_mlp = 0;  // inputs of the Linears that write back to the stream
  int64_t norm_count = 0;
  int64_t all() const { return plus(norms + inputs + attention, mlp); }
  int64_t kept(const Recomputed& again) const {
    if (again.layer) return stream;
    return plus(norms + inputs + (again.attention ? 0 : attention), again.mlp ? 0 : mlp);
  }
  // While the gradients of weights wait, beyond what is kept: gradients of the Linears' outputs,
  // and recomputed inputs of theirs.
  int64_t waiting(const Recomputed& again) const {
    int64_t made_again = (again.layer || again.attention ? closing_attention : 0) +
                         (again.layer || again.mlp ? closing_mlp : 0);
    return plus(outputs, plus(made_again, again.layer ? inputs : 0));
  }
  // What exists at once while it is computed again.
  int64_t together(const Recomputed& again) const {
    if (again.layer) return all();
    return std::max(again.attention ? attention : 0, again.mlp ? mlp : 0);
  }
};

bool has_one_of(const ModuleIndex& index, std::string_view layer,
                std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) {
    return index.find(std::string(layer) + "." + name) != nullptr;
  });
}

// The schedule's peak on this rank, and how many stages it runs.
pipeline::InFlight in_flight_of(const FootprintRequest& request, int64_t& local) {
  const PipelineOptions& options = request.config.shared.pipeline;
  int64_t size = pipeline_size(request),
          rank = request.mesh.device_mesh->coordinate(request.rank, "pp"),
          micro_batches = micro_batches_of(request);
  local = 1;
  // A file of actions may hold anything: as if all forwards came first. That counts all stages of
  // the rank, as one.
  if (options.schedule.empty() || !options.schedule_csv.empty())
    return pipeline::in_flight(PipelineSchedule::gpipe, size, 1, micro_batches, rank);
  PipelineSchedule schedule = parse_schedule(options.schedule);
  if (is_multi_stage(schedule))
    local = static_cast<int64_t>(plan_stages(request.outline.layers, size, options)
                                     .stages_of_rank.at(static_cast<size_t>(rank))
                                     .size());
  return pipeline::in_flight(schedule, size, std::max<int64_t>(local, 1), micro_batches, rank);
}

}  // namespace

Recomputed recomputed_of(const FootprintRequest& request, const ModuleIndex& index,
                         std::string_view layer, bool whole_layers) {
  const SharedOptions& shared = request.config.shared;
  const std::vector<std::string>& scope = shared.activation_checkpointing_scope;
  bool full = shared.activation_checkpointing == ActivationCheckpointing::full;
  if (shared.activation_checkpointing == ActivationCheckpointing::none ||
      !checkpoint_scope::holds(scope, layer))
    return {};
  if (full && checkpoint_scope::whole_layers(whole_layers, scope)) return {.layer = true};
  using namespace checkpoint_scope;
  Recomputed again{.attention = full && has_one_of(index, layer, kAttentions),
                   .mlp = has_one_of(index, layer, kMlps)};
  // A layer with none of the modules that are known is recomputed whole.
  again.layer = !again.attention && !again.mlp && !has_one_of(index, layer, kFirstNorms) &&
                !has_one_of(index, layer, kSecondNorms);
  return again;
}

}  // namespace meshwright::footprint

namespace meshwright {

int64_t activation_bytes(const FootprintRequest& request, bool whole_layers) {
  using namespace footprint;
  int64_t tokens = tokens_of(request);
  if (tokens == 0) return 0;
  const ModelOutline& outline = request.outline;
  ModuleIndex index(outline);
  int64_t tp = request.mesh.device_mesh ? request.mesh.device_mesh->size("tp") : 1;
  std::set<std::string> sequence;  // norms that see a part of the sequence
  bool cut_logits = false;
  if (tp > 1)
    for (const TpModule& module : resolve_tp_modules(request.tp, outline)) {
      if (module.style.kind == TpStyleKind::sequence ||
          module.style.kind == TpStyleKind::sequence_all_gather)
        sequence.insert(module.name);
      cut_logits =
          cut_logits || (module.name == "lm_head" && module.style.output == TpLayout::shard_last);
    }
  auto stream = [&](std::string_view norm) {
    return outline.hidden_size / (sequence.contains(std::string(norm)) ? tp : 1);
  };
  int64_t active = outline.moe ? outline.moe->active_experts : 1;

  int64_t kept = 0, waiting = 0;  // by the forward of a pass; while gradients of weights wait
  int64_t largest = 0;            // of what is computed again at once: one layer, or one block
  Saved layer;
  int64_t outside = 0;
  std::string_view current;
  std::set<std::string_view> blocks;
  auto close = [&] {
    if (current.empty()) return;
    if (layer.stream == 0) layer.stream = outline.hidden_size;
    // Blocks side by side behind one norm (Phi) have one input.
    if (layer.norm_count > 0)
      layer.inputs = std::min(layer.inputs, layer.norm_count * outline.hidden_size);
    Recomputed again = recomputed_of(request, index, current, whole_layers);
    kept = plus(kept, layer.kept(again));
    waiting = plus(waiting, layer.waiting(again));
    largest = std::max(largest, layer.together(again));
    layer = {};
  };
  for (const ParameterOutline& parameter : outline.parameters) {
    std::string_view module = module_of(parameter.name), within = index.layer_of(module);
    if (within != current) {
      close();
      current = within;
    }
    const ModuleOutline* found = index.find(module);
    if (found == nullptr || parameter.shape.empty()) continue;
    bool weight = parameter.name.ends_with(".weight");
    if (within.empty()) {
      if (weight && found->kind == ModuleKind::norm) outside += stream(module);
      continue;
    }
    if (found->kind == ModuleKind::norm && weight && module_of(module) == within) {
      layer.norms += stream(module);
      ++layer.norm_count;
      if (layer.stream == 0) layer.stream = stream(module);
    } else if (found->kind == ModuleKind::experts && parameter.shape.size() == 3) {
      // Balanced routing brings as many tokens as leave; both widths of an expert's matrices pass
      // by once.
      bool up = parameter.name.find("up") != std::string::npos;
      int64_t width = element_count(parameter.shape) / (std::max<int64_t>(parameter.shape[0], 1) *
                                                        std::max<int64_t>(outline.hidden_size, 1));
      layer.mlp = plus(layer.mlp, times(active, width + (up ? outline.hidden_size : 0)));
    } else if (found->kind == ModuleKind::linear && weight && parameter.shape.size() == 2) {
      bool cut = tp > 1 && tp_shard_dim(request.tp, outline, parameter.name).has_value();
      int64_t width =
          (closes_block(module) ? parameter.shape[1] : parameter.shape[0]) / (cut ? tp : 1);
      (in_attention(module.substr(within.size())) ? layer.attention : layer.mlp) += width;
      if (closes_block(module))
        (in_attention(module.substr(within.size())) ? layer.closing_attention
                                                    : layer.closing_mlp) += width;
      layer.outputs =
          plus(layer.outputs, parameter.shape[0] / (cut && !closes_block(module) ? tp : 1));
      if (blocks.insert(module_of(module)).second) layer.inputs += outline.hidden_size;
    }
  }
  close();

  // The head's input, which is whole; its logits, and at the turn to backward their gradient beside
  // them.
  int64_t logits = 0;
  if (outline.find_module("lm_head") != nullptr) {
    outside += outline.hidden_size;
    logits = times((outline.vocab_size + (cut_logits ? tp : 1) - 1) / (cut_logits ? tp : 1),
                   dtype_size(precision_of(request).output));
  }
  pipeline::InFlight flight{1, 0, 1};
  int64_t local = 1, element = dtype_size(precision_of(request).param);
  if (pipeline_size(request) > 1) flight = in_flight_of(request, local);
  // Of all stages that the rank runs; a pass in flight is of one of them.
  auto in_flight = [&](int64_t elements, int64_t passes) {
    int64_t all = times(elements, passes);
    return all == INT64_MAX ? all : (all + local - 1) / local;
  };
  int64_t elements = plus(plus(in_flight(kept, flight.passes), in_flight(waiting, flight.waiting)),
                          plus(largest, times(outside, flight.logits)));
  return times(tokens, plus(times(elements, element), times(logits, flight.logits + 1)));
}

}  // namespace meshwright
