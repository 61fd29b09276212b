// Whether a plan leaves every block whole: what is cut on the way in is put together on the way
// out, and all agree on the sequence.

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "meshwright/error.h"
#include "meshwright/tp_plan.h"
#include "sdk/base/head_of.h"
#include "sdk/base/low_rank.h"
#include "sdk/base/text.h"
#include "tp_blocks.h"
#include "tp_errors.h"

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
              std::string(kOfHeads) + "\"}, or \"" + std::string(kOfStream) + "\"")
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

}  // namespace meshwright
