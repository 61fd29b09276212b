#include <algorithm>
#include <set>
#include <unordered_map>

#include "footprint_parts.h"

namespace meshwright {
namespace {

using namespace footprint;

bool is_norm_style(TpStyleKind kind) { return kind == TpStyleKind::sequence || kind == TpStyleKind::sequence_all_gather; }

// What the rows of all modules need to know.
struct TpContext {
  const FootprintRequest& request;
  ModuleIndex index;
  Axis tp;
  Wire wire;
  int64_t tokens = 0, passes = 0;  // of one pass; passes a step
  int64_t activation = 0;          // bytes of an element
  std::unordered_map<std::string_view, const ParameterOutline*> parameters;
  std::set<std::string_view> plain_norm_layers;   // layers whose norms leave the sequence cut
  std::set<std::string_view> gather_norm_layers;  // layers whose norms gather it themselves
  std::set<std::string_view> column_parents;      // modules with a child cut by columns

  // One collective a pass over a tensor of `width` for each token; `forward` ones run again where they are recomputed.
  void forward(std::string_view module, std::string_view op, int64_t width) {
    wire.add(tp, op, times(passes, forward_runs(request, index, module)), times(tokens, width, activation));
  }
  void backward(std::string_view op, int64_t width) { wire.add(tp, op, passes, times(tokens, width, activation)); }
};

// Weight shape of a module; a tied head has its embedding's.
std::vector<int64_t> weight_shape(const TpContext& context, const std::string& module) {
  auto at = context.parameters.find(module + ".weight");
  if (at != context.parameters.end()) return at->second->shape;
  const ModelOutline& outline = context.request.outline;
  if (outline.tied_embeddings) return {outline.vocab_size, outline.hidden_size};
  return {};
}

void add_column(TpContext& context, const ModuleOutline& module, const TpStyle& style, int64_t in, int64_t out) {
  std::string_view layer = context.index.layer_of(module.name);
  if (module.kind != ModuleKind::embedding) {
    if (style.input == TpLayout::shard_1 || context.plain_norm_layers.contains(layer)) {
      context.forward(module.name, "all_gather", in);
      context.backward("reduce_scatter", in);
    } else if (!context.gather_norm_layers.contains(layer)) {
      context.backward("all_reduce", in);
    }
  }
  // A head that keeps its logits cut: the loss gathers them.
  bool logits = layer.empty() && module.kind == ModuleKind::linear;
  if (style.output == TpLayout::replicate || logits) context.forward(module.name, "all_gather", out);
}

void add_row(TpContext& context, const ModuleOutline& module, const TpStyle& style, int64_t in, int64_t out) {
  bool embedding = module.kind == ModuleKind::embedding;
  // An input that is whole is cut for free; its gradient is put together again.
  if (!embedding && style.input == TpLayout::replicate) context.backward("all_gather", in);
  if (style.output == TpLayout::replicate) {
    context.forward(module.name, "all_reduce", out);
  } else {
    context.forward(module.name, "reduce_scatter", out);
    context.backward("all_gather", out);
  }
}

// Gradients that are sums over tp: of sequence-parallel norms, norms of attention heads, biases added after a reduce-scatter.
void add_partial_gradients(TpContext& context, const std::vector<std::pair<const ModuleOutline*, TpStyle>>& styled) {
  std::set<std::string_view> whole, bias;
  for (const auto& [module, style] : styled) {
    if (is_norm_style(style.kind)) whole.insert(module->name);
    if (style.kind == TpStyleKind::row && style.output == TpLayout::shard_1) bias.insert(module->name);
  }
  for (const ModuleOutline& module : context.request.outline.modules)
    if (module.kind == ModuleKind::norm && context.column_parents.contains(module_of(module.name))) whole.insert(module.name);
  int64_t element = dtype_size(precision_of(context.request).reduce);
  for (const ParameterOutline& parameter : context.request.outline.parameters) {
    std::string_view module = module_of(parameter.name);
    if (whole.contains(module) || (bias.contains(module) && parameter.name.ends_with(".bias")))
      context.wire.add(context.tp, "all_reduce", 1, times(element_count(parameter.shape), element));
  }
}

}  // namespace

std::vector<WireRow> tp_wire(const FootprintRequest& request) {
  if (!request.mesh.device_mesh) return {};
  TpContext context{request,
                    ModuleIndex(request.outline),
                    {"tp", request.mesh.device_mesh->size("tp"), 0},
                    {},
                    tokens_of(request),
                    passes_of(request),
                    0,
                    {},
                    {},
                    {},
                    {}};
  if (context.tp.size <= 1 || request.tp.entries.empty()) return {};
  context.activation = dtype_size(precision_of(request).param);
  for (const ParameterOutline& parameter : request.outline.parameters) context.parameters[parameter.name] = &parameter;

  // The plan may speak of a whole model of which this outline is a stage.
  std::vector<std::pair<const ModuleOutline*, TpStyle>> styled;
  for (const TpEntry& entry : request.tp.entries)
    for (const std::string& name : entry.modules)
      if (const ModuleOutline* module = context.index.find(name)) styled.emplace_back(module, entry.style);
  for (const auto& [module, style] : styled) {
    std::string_view layer = context.index.layer_of(module->name), above = module_of(module->name);
    if (layer.empty()) continue;
    if (style.kind == TpStyleKind::column) context.column_parents.insert(above);
    // Norms beside the blocks, not inside them, feed the columns of a layer.
    if (above != layer) continue;
    if (style.kind == TpStyleKind::sequence) context.plain_norm_layers.insert(layer);
    if (style.kind == TpStyleKind::sequence_all_gather) context.gather_norm_layers.insert(layer);
  }
  for (const auto& [module, style] : styled) {
    if (style.kind == TpStyleKind::rotary || style.kind == TpStyleKind::sequence) continue;
    if (style.kind == TpStyleKind::sequence_all_gather) {
      context.forward(module->name, "all_gather", request.outline.hidden_size);
      context.backward("reduce_scatter", request.outline.hidden_size);
      continue;
    }
    std::vector<int64_t> shape = weight_shape(context, module->name);
    if (shape.size() != 2) continue;
    bool embedding = module->kind == ModuleKind::embedding;
    int64_t in = embedding ? shape[0] : shape[1], out = embedding ? shape[1] : shape[0];
    if (style.kind == TpStyleKind::column)
      add_column(context, *module, style, in, out);
    else
      add_row(context, *module, style, in, out);
  }
  add_partial_gradients(context, styled);
  return context.wire.rows();
}

}  // namespace meshwright
