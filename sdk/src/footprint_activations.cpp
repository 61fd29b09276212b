#include <algorithm>
#include <set>
#include <string>

#include "footprint_parts.h"
#include "meshwright/pipeline.h"

namespace meshwright::footprint {
namespace {

// Linears that write back to the residual stream: their output is an addend and is not kept.
bool closes_block(std::string_view module) {
  std::string_view name = module.substr(module.rfind('.') + 1);
  return name == "o_proj" || name == "dense" || name == "out_proj" || name == "down_proj" || name == "fc2";
}

// Elements a token keeps for backward.
struct Saved {
  int64_t stream = 0;     // the layer's input
  int64_t norms = 0;      // inputs of norms: the residual stream
  int64_t inputs = 0;     // inputs of attention and mlp
  int64_t attention = 0;  // inside attention
  int64_t mlp = 0;        // inside mlp and experts
  int64_t all() const { return plus(norms + inputs + attention, mlp); }
};

}  // namespace

int64_t activation_bytes(const FootprintRequest& request) {
  int64_t tokens = tokens_of(request);
  if (tokens == 0) return 0;
  const ModelOutline& outline = request.outline;
  const SharedOptions& shared = request.config.shared;
  ModuleIndex index(outline);
  int64_t tp = request.mesh.device_mesh ? request.mesh.device_mesh->size("tp") : 1;
  std::set<std::string> sequence;  // norms that see a part of the sequence
  bool cut_logits = false;
  if (tp > 1)
    for (const TpModule& module : resolve_tp_modules(request.tp, outline)) {
      if (module.style.kind == TpStyleKind::sequence || module.style.kind == TpStyleKind::sequence_all_gather) sequence.insert(module.name);
      cut_logits = cut_logits || (module.name == "lm_head" && module.style.output == TpLayout::shard_last);
    }
  auto stream = [&](std::string_view norm) { return outline.hidden_size / (sequence.contains(std::string(norm)) ? tp : 1); };
  int64_t active = outline.moe ? outline.moe->active_experts : 1;

  // The layers of a model are alike or nearly so; the largest stands for the one computed again.
  Saved sum, largest;
  Saved layer;
  int64_t outside = 0;
  std::string_view current;
  std::set<std::string_view> blocks;
  auto close = [&] {
    if (current.empty()) return;
    if (layer.stream == 0) layer.stream = outline.hidden_size;
    sum.stream += layer.stream, sum.norms += layer.norms, sum.inputs += layer.inputs, sum.attention += layer.attention,
        sum.mlp = plus(sum.mlp, layer.mlp);
    if (layer.all() > largest.all()) largest = layer;
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
      if (layer.stream == 0) layer.stream = stream(module);
    } else if (found->kind == ModuleKind::experts && parameter.shape.size() == 3) {
      // Balanced routing brings as many tokens as leave; both widths of an expert's matrices pass by once.
      bool up = parameter.name.find("up") != std::string::npos;
      int64_t width =
          element_count(parameter.shape) / (std::max<int64_t>(parameter.shape[0], 1) * std::max<int64_t>(outline.hidden_size, 1));
      layer.mlp = plus(layer.mlp, times(active, width + (up ? outline.hidden_size : 0)));
    } else if (found->kind == ModuleKind::linear && weight && parameter.shape.size() == 2) {
      bool cut = tp > 1 && tp_shard_dim(request.tp, outline, parameter.name).has_value();
      int64_t width = (closes_block(module) ? parameter.shape[1] : parameter.shape[0]) / (cut ? tp : 1);
      (in_attention(module.substr(within.size())) ? layer.attention : layer.mlp) += width;
      if (blocks.insert(module_of(module)).second) layer.inputs += outline.hidden_size;
    }
  }
  close();

  int64_t elements = 0;
  switch (shared.activation_checkpointing) {
    case ActivationCheckpointing::none:
      elements = sum.all();
      break;
    case ActivationCheckpointing::full:
      elements = plus(sum.stream, largest.all());
      break;
    case ActivationCheckpointing::selective:
      elements = plus(sum.norms + sum.inputs + sum.attention, largest.mlp);
      break;
  }
  // The head's input, which is whole; its logits, and at the turn to backward their gradient beside them.
  int64_t logits = 0;
  if (outline.find_module("lm_head") != nullptr) {
    outside += outline.hidden_size;
    int64_t ranks = cut_logits ? tp : 1;
    logits = times(2, (outline.vocab_size + ranks - 1) / ranks, dtype_size(precision_of(request).output));
  }
  int64_t bytes = times(tokens, plus(times(plus(elements, outside), dtype_size(precision_of(request).param)), logits));

  // Passes whose backward has not begun when the pipeline is full.
  int64_t stages = pipeline_size(request);
  if (stages == 1) return bytes;
  int64_t flight = micro_batches_of(request);
  PipelineSchedule schedule = shared.pipeline.schedule.empty() ? PipelineSchedule::gpipe : parse_schedule(shared.pipeline.schedule);
  if (schedule == PipelineSchedule::one_f_one_b)
    flight = std::min(flight, stages - request.mesh.device_mesh->coordinate(request.rank, "pp"));
  return times(flight, bytes);
}

}  // namespace meshwright::footprint
