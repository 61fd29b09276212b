// Whether a plan leaves every block whole: what is cut on the way in is put together on the way
// out, and all agree on the sequence.
#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "footprint_parts.h"
#include "meshwright/error.h"
#include "meshwright/tp_plan.h"
#include "sdk/base/head_of.h"
#include "sdk/base/low_rank.h"
#include "sdk/base/text.h"
#include "tp_tables.h"

namespace meshwright {

namespace {

using enum TpStyleKind;
using enum TpLayout;

constexpr std::string_view kIn[] = {"q_proj",    "k_proj",  "v_proj",       "qkv_proj",
                                    "gate_proj", "up_proj", "gate_up_proj", "fc1"};
constexpr std::string_view kOut[] = {"o_proj", "dense", "down_proj", "fc2"};

bool is_one_of(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string text_of(const TpStyle* style) {
  if (style == nullptr) return "no style";
  return std::string(style_name(style->kind)) + " (" + std::string(layout_name(style->input)) +
         " to " + std::string(layout_name(style->output)) + ")";
}

// A projection of a block and its style, if it has one; without a name: none.
struct Projection {
  std::string_view name = {};
  const TpStyle* style = nullptr;
  bool none() const { return name.empty(); }
  std::string said() const { return std::string(name) + " has " + text_of(style); }
};

// The projections of an attention or an MLP: all of those on the way in are cut, and the one on the
// way out joins them, or none is. Texts are made for a block that is refused alone: a large model
// has hundreds.
struct ProjectionBlock {
  Projection wrong;         // the first on the way in that takes a cut input
  Projection cut, whole;    // the last on the way in
  Projection joins, takes;  // the last on the way out: of parts, of a whole
  bool unusual = false;     // of another build: nothing is known of how its projections belong
                            // together

  void add(const Projection& one) {
    const TpStyle* style = one.style;
    const bool in = is_one_of(kIn, one.name),
               of_parts = style != nullptr && style->kind == row && style->input == shard_last;
    if (!in && !is_one_of(kOut, one.name))
      unusual = true;
    else if (!in)
      (of_parts ? joins : takes) = one;
    else if (!of_parts)
      (style != nullptr && style->kind == column && style->output == shard_last ? cut : whole) =
          one;
    else if (wrong.none())
      wrong = one;
  }
  bool fits() const {
    if (unusual) return true;
    return wrong.none() && ((cut.none() && joins.none()) || (whole.none() && takes.none()));
  }
};

[[noreturn]] void refuse_block(std::string_view parent, const ProjectionBlock& block) {
  const std::string in = "in " + std::string(parent) + ", ";
  if (!block.wrong.none())
    throw tp_plan_does_not_fit(in + block.wrong.said() +
                               ", but its input is whole: nothing before it leaves it cut")
        .help("give it the style \"colwise\", and the projection on the way out \"rowwise\"")
        .help("give it the style \"rowwise_rep\", which cuts its input itself");
  const Projection &one = block.cut.none() ? block.joins : block.cut,
                   &other = block.whole.none() ? block.takes : block.whole;
  throw tp_plan_does_not_fit(in + one.said() + ", but " + other.said() +
                             ": a rank would combine a part with a whole")
      .help(
          "give its projections on the way in the style \"colwise\" and the one on the way out "
          "\"rowwise\"")
      .help("give none of its projections a style that leaves them cut");
}

// What stands whole beside projections that are cut, and trains: whether its gradient is a part of
// a sum is for the outline to say.
void check_declared(const TpPlan& plan, const ModelOutline& outline,
                    const std::unordered_map<std::string_view, const TpStyle*>& styles) {
  const footprint::ModuleIndex index(outline);
  const tp::CutBlocks blocks(plan, index);
  for (const ParameterOutline& parameter : outline.parameters) {
    const std::string_view name = module_of(parameter.name), block = blocks.around(name);
    if (block.empty() || !parameter.trainable || styles.contains(name)) continue;
    const ModuleOutline* module = index.find(name);
    if (module == nullptr || module->kind == ModuleKind::experts ||
        module->kind == ModuleKind::router || is_added_factor(*module) ||
        tp::seen_by(outline, name) != tp::Sees::unsaid)
      continue;
    throw tp_plan_does_not_fit(
        std::string(name) + " stands whole among the projections of " + std::string(block) +
        ", which are cut, and the model's own plan does not say whether it sees their heads or the "
        "stream: the gradient of " +
        parameter.name + " may be a part of a sum")
        .help("the model's outline says it, in own_tp_plan: {" + text::quote(name) + ", \"" +
              std::string(kOfHeads) +
              "\"} if it sees heads (gradients are then summed over tp), or \"" +
              std::string(kOfStream) + "\"" +
              (module->kind == ModuleKind::other
                   ? ", or \"colwise\" if its parameters have rows by head, which are then cut"
                   : ""))
        .help("a plan of patterns says it likewise, in distributed.tp_plan")
        .help("set distributed.tp_size = 1");
  }
}

}  // namespace

void check_tp_blocks(const TpPlan& plan, const ModelOutline& outline) {
  std::unordered_map<std::string_view, const TpStyle*> styles;
  styles.reserve(outline.modules.size());
  for (const TpEntry& entry : plan.entries)
    for (const std::string& name : entry.modules) styles[name] = &entry.style;
  std::unordered_map<std::string_view, ProjectionBlock> blocks;
  // What runs between the blocks is whole on every rank or cut along the sequence, everywhere
  // alike.
  const std::string *part = nullptr, *whole = nullptr;
  const ModuleOutline* head = head_of(outline);
  for (const ModuleOutline& module : outline.modules) {
    const auto found = styles.find(module.name);
    const TpStyle* style = found == styles.end() ? nullptr : found->second;
    if (style != nullptr) {
      bool norm = style->kind == sequence || style->kind == sequence_all_gather;
      bool into_stream = style->kind == row || module.kind == ModuleKind::embedding;
      if (norm ? style->input == shard_1 : into_stream && style->output == shard_1)
        part = &module.name;
      if (into_stream && style->output == replicate) whole = &module.name;
    }
    std::string_view parent = module_of(module.name),
                     child = std::string_view(module.name)
                                 .substr(parent.empty() ? 0 : parent.size() + 1);
    if (module.kind == ModuleKind::embedding && style != nullptr && style->output == shard_last)
      throw tp_plan_does_not_fit(
          module.name +
          " would leave what it looks up cut along its width, which nothing after it expects")
          .help("give it the style \"rowwise_rep\", which cuts the vocabulary")
          .help("give it the style \"colwise_rep\", which puts the width together");
    if (&module == head && style != nullptr && style->kind == row && style->input == shard_last)
      throw tp_plan_does_not_fit(module.name + " has " + text_of(style) +
                                 ", but its input is whole: nothing before it leaves it cut")
          .help("give it the style \"colwise\"")
          .help("give it the style \"rowwise_rep\", which cuts its input itself");
    if (module.kind != ModuleKind::linear || parent.empty()) continue;
    blocks[parent].add({child, style});
  }
  // The first by name is the one that is told.
  const std::pair<const std::string_view, ProjectionBlock>* refused = nullptr;
  for (const auto& block : blocks)
    if (!block.second.fits() && (refused == nullptr || block.first < refused->first))
      refused = &block;
  if (refused != nullptr) refuse_block(refused->first, refused->second);
  check_declared(plan, outline, styles);
  if (part != nullptr && whole != nullptr)
    throw tp_plan_does_not_fit(*whole + " gives whole activations, but " + *part +
                               " works on a part of the sequence: they cannot be added")
        .help(
            "leave distributed.tp_plan out and set distributed.sequence_parallel = true: the "
            "model's own plan has both")
        .help("remove the patterns with the style \"sequence_parallel\"");
}

// What a plan's styles come to in one model: the layout that reaches each styled module, and which
// gradients are partial sums.

namespace {

using footprint::ModuleIndex;

bool is_sequence(const TpStyle& style) {
  return style.kind == TpStyleKind::sequence || style.kind == TpStyleKind::sequence_all_gather;
}
bool is_cut(const TpStyle& style) {
  return style.kind == TpStyleKind::column || style.kind == TpStyleKind::row;
}

// The norms beside a layer's blocks: they say in what layout the blocks' inputs arrive.
struct LayerNorms {
  bool plain = false, gathering = false;
  bool columns_only =
      true;  // nothing but columns, and rows that continue them, reads the norms' output
  std::string norm, pattern;  // one of them, for the reader
};

struct Styled {
  const ModuleOutline* module;
  const TpEntry* entry;
};

struct Resolved {
  explicit Resolved(const ModelOutline& model) : outline(model), index(model) {}
  const ModelOutline& outline;
  ModuleIndex index;
  std::vector<Styled> styled;  // in the plan's order
  std::unordered_map<std::string_view, const TpEntry*> entry_of;
  std::map<std::string_view, LayerNorms>
      layers;          // of layers with sequence-parallel norms of their own
  LayerNorms outside;  // those outside of all layers: the final norm
};

[[noreturn]] void refuse_part_of_sequence(const TpPlan& plan, const ModuleOutline& module,
                                          const LayerNorms& norms) {
  Error error =
      tp_plan_does_not_fit(module.name + " has no style, but the norm " + norms.norm +
                           " beside it is sequence parallel: it sees only a part of the sequence");
  if (plan.source == "custom") {
    if (module.kind == ModuleKind::linear)
      error.help("give " + module.name + " the style \"colwise\"");
    if (module.kind == ModuleKind::norm)
      error.help("give " + module.name + " the style \"sequence_parallel\"");
    error.help("remove the pattern " + text::quote(norms.pattern));
  } else {
    error.help("set distributed.sequence_parallel = false");
  }
  throw error;
}

[[noreturn]] void refuse_mixed(std::string_view layer, const LayerNorms& norms) {
  throw tp_plan_does_not_fit(
      std::string(layer) +
      " has norms of both kinds, sequence_parallel and sequence_parallel_allgather (" + norms.norm +
      " is one): which layout its projections get cannot be told")
      .help("give all norms of a layer the same style")
      .help("set distributed.sequence_parallel = false");
}

// A row style cuts an input that is whole; behind a norm that leaves the sequence cut there is
// none.
[[noreturn]] void refuse_whole_row(const TpPlan& plan, const Styled& row, const LayerNorms& norms) {
  Error error =
      tp_plan_does_not_fit(row.module->name + " is a row style with a whole input (pattern " +
                           text::quote(row.entry->pattern) + "), but the norm " + norms.norm +
                           " beside it is sequence parallel: it sees only a part of the sequence");
  if (plan.source == "custom")
    error.help("set distributed.tp_plan." + text::quote(row.entry->pattern) +
               " = \"rowwise\" after a \"colwise\" projection");
  throw error.help(plan.source == "custom" ? "remove the pattern " + text::quote(norms.pattern)
                                           : "set distributed.sequence_parallel = false");
}

void check_layers(const TpPlan& plan, Resolved& model) {
  for (auto& [layer, norms] : model.layers)
    if (norms.plain && norms.gathering) refuse_mixed(layer, norms);
  if (model.layers.empty() && !model.outside.plain) return;  // no norm cuts the sequence
  std::unordered_set<std::string_view> with_parameters;
  for (const ParameterOutline& parameter : model.outline.parameters)
    with_parameters.insert(module_of(parameter.name));
  bool behind = false;  // modules come in order: heads follow the final norm
  for (const ModuleOutline& module : model.outline.modules) {
    auto entry = model.entry_of.find(module.name);
    std::string_view layer = model.index.layer_of(module.name);
    if (layer.empty()) {
      if (module.name == model.outside.norm) behind = true;
      bool head = module.kind == ModuleKind::linear && module_of(module.name).empty();
      if (behind && head && model.outside.plain && entry == model.entry_of.end())
        refuse_part_of_sequence(plan, module, model.outside);
      continue;
    }
    auto at = model.layers.find(layer);
    if (at == model.layers.end()) continue;
    LayerNorms& norms = at->second;
    // One of heads reads what the columns give, which has all positions.
    bool own_norm = module.kind == ModuleKind::norm && module_of(module.name) == layer &&
                    with_parameters.contains(module.name) &&
                    tp::seen_by(model.outline, module.name) != tp::Sees::heads;
    bool projection = module.kind == ModuleKind::linear || module.kind == ModuleKind::experts ||
                      module.kind == ModuleKind::router;
    if (!own_norm && !projection) continue;
    if (entry == model.entry_of.end()) {
      // Behind norms that gather, a projection without a style is right; a norm sees the stream
      // itself, which is cut.
      if (norms.plain || own_norm) refuse_part_of_sequence(plan, module, norms);
      norms.columns_only = false;
    } else if (projection && entry->second->style.kind == TpStyleKind::row &&
               entry->second->style.input == TpLayout::replicate) {
      if (norms.plain) refuse_whole_row(plan, {&module, entry->second}, norms);
      norms.columns_only = false;
    }
  }
}

// A head tied to an embedding is one weight, so both must be cut along the same dimension.
void check_tied(const Resolved& model) {
  const ModelOutline& outline = model.outline;
  if (!outline.tied_embeddings) return;
  const ModuleOutline *head = nullptr, *embedding = nullptr;
  for (const ModuleOutline& module : outline.modules) {
    if (!model.index.layer_of(module.name).empty()) continue;
    bool weight = outline.find_parameter(module.name + ".weight") != nullptr;
    if (module.kind == ModuleKind::embedding && weight && embedding == nullptr) embedding = &module;
    if (module.kind == ModuleKind::linear && !weight && head == nullptr) head = &module;
  }
  if (head == nullptr || embedding == nullptr) return;  // a stage may hold one of them
  auto cut = [&](const ModuleOutline& module) -> std::string {
    auto at = model.entry_of.find(module.name);
    if (at == model.entry_of.end() || !is_cut(at->second->style)) return "not at all";
    bool column = at->second->style.kind == TpStyleKind::column;
    return column == (module.kind == ModuleKind::linear) ? "by vocabulary" : "by width";
  };
  std::string of_head = cut(*head), of_embedding = cut(*embedding);
  if (of_head == of_embedding) return;
  throw tp_plan_does_not_fit("the head " + head->name + " and the embedding " + embedding->name +
                             " share one weight, but the plan would cut the head " + of_head +
                             " and the embedding " + of_embedding)
      .help("give " + text::quote(head->name) + " the style \"colwise\" and " +
            text::quote(embedding->name) + " \"rowwise_rep\"")
      .help("give neither of them a style");
}

Resolved read_plan(const TpPlan& plan, const ModelOutline& outline) {
  Resolved model(outline);
  for (const TpEntry& entry : plan.entries)
    for (const std::string& name : entry.modules)
      if (const ModuleOutline* module = model.index.find(name)) {
        model.styled.push_back({module, &entry});
        model.entry_of.emplace(module->name, &entry);
      }
  for (const auto& [module, entry] : model.styled) {
    if (!is_sequence(entry->style)) continue;
    std::string_view layer = model.index.layer_of(module->name);
    if (!layer.empty() && module_of(module->name) != layer) continue;
    LayerNorms& norms = layer.empty() ? model.outside : model.layers[layer];
    if (layer.empty()) norms = {};  // the last one is what the head reads
    (entry->style.kind == TpStyleKind::sequence ? norms.plain : norms.gathering) = true;
    norms.norm = module->name;
    norms.pattern = entry->pattern;
  }
  check_layers(plan, model);
  check_tied(model);
  return model;
}

// What lies behind a norm outside of the layers is the model's head.
const LayerNorms* norms_before(const Resolved& model, const ModuleOutline& module) {
  std::string_view layer = model.index.layer_of(module.name);
  if (layer.empty()) return module_of(module.name).empty() ? &model.outside : nullptr;
  auto at = model.layers.find(layer);
  return at == model.layers.end() ? nullptr : &at->second;
}

// The factor of an adapter that is whole beside a Linear that is cut.
bool is_whole_factor(const Resolved& model, std::string_view parameter) {
  const std::optional<LowRankFactor> factor = low_rank_factor(parameter);
  if (!factor || model.entry_of.contains(module_of(parameter))) return false;
  auto at = model.entry_of.find(factor->linear);
  if (at == model.entry_of.end() || !is_cut(at->second->style)) return false;
  const ModuleOutline* linear = model.index.find(factor->linear);
  return linear != nullptr && linear->kind == ModuleKind::linear &&
         !factor_cut_dim(at->second->style.kind == TpStyleKind::column, factor->out);
}

}  // namespace

std::vector<TpModule> resolve_tp_modules(const TpPlan& plan, const ModelOutline& outline) {
  Resolved model = read_plan(plan, outline);
  std::vector<TpModule> out;
  for (const auto& [module, entry] : model.styled) {
    TpModule resolved{module->name, entry->style, false};
    const LayerNorms* norms = norms_before(model, *module);
    std::string_view layer = model.index.layer_of(module->name);
    if (norms != nullptr && entry->style.kind == TpStyleKind::column &&
        module->kind != ModuleKind::embedding) {
      if (norms->plain) resolved.style.input = TpLayout::shard_1;
      if (norms->gathering) resolved.style.input = TpLayout::replicate;
      resolved.gathers_for_columns = !layer.empty() && norms->gathering && norms->columns_only;
    }
    if (norms != nullptr && entry->style.kind == TpStyleKind::sequence_all_gather &&
        module_of(module->name) == layer)
      resolved.gathers_for_columns = !layer.empty() && norms->columns_only;
    out.push_back(std::move(resolved));
  }
  return out;
}

std::vector<std::string> partial_gradient_parameters(const TpPlan& plan,
                                                     const ModelOutline& outline) {
  Resolved model = read_plan(plan, outline);
  const tp::CutBlocks blocks(plan, model.index);
  std::set<std::string_view> whole, bias;
  for (const auto& [module, entry] : model.styled) {
    if (is_sequence(entry->style)) whole.insert(module->name);
    if (module->kind == ModuleKind::linear && entry->style.kind == TpStyleKind::row &&
        entry->style.output == TpLayout::shard_1)
      bias.insert(module->name);
  }
  std::vector<std::string> out;
  for (const ParameterOutline& parameter : outline.parameters) {
    std::string_view name = module_of(parameter.name);
    const bool of_heads = !model.entry_of.contains(name) && !blocks.around(name).empty() &&
                          tp::seen_by(outline, name) == tp::Sees::heads;
    if (of_heads || whole.contains(name) ||
        (bias.contains(name) && parameter.name.ends_with(".bias")) ||
        is_whole_factor(model, parameter.name))
      out.push_back(parameter.name);
  }
  return out;
}

}  // namespace meshwright
