// Whether a plan leaves every block whole: what is cut on the way in is put together on the way
// out, and all agree on the sequence.

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/tp_plan.h"
#include "sdk/base/text.h"
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

// The projections of an attention or an MLP: all of those on the way in are cut, and the one on the
// way out joins them, or none is.
void check_block(const std::string& parent,
                 const std::vector<std::pair<std::string_view, const TpStyle*>>& children) {
  std::string cut, whole, joins, takes_whole;
  for (const auto& [child, style] : children) {
    std::string said = std::string(child) + " has " + text_of(style);
    if (is_one_of(kIn, child) && style != nullptr && style->kind == row &&
        style->input == shard_last)
      throw tp_plan_does_not_fit("in " + parent + ", " + said +
                                 ", but its input is whole: nothing before it leaves it cut")
          .help("give it the style \"colwise\", and the projection on the way out \"rowwise\"")
          .help("give it the style \"rowwise_rep\", which cuts its input itself");
    if (is_one_of(kIn, child))
      (style != nullptr && style->kind == column && style->output == shard_last ? cut : whole) =
          said;
    else
      (style != nullptr && style->kind == row && style->input == shard_last ? joins : takes_whole) =
          said;
  }
  if (cut.empty() && joins.empty()) return;
  if (whole.empty() && takes_whole.empty()) return;
  const std::string &one = cut.empty() ? joins : cut, &other = whole.empty() ? takes_whole : whole;
  throw tp_plan_does_not_fit("in " + parent + ", " + one + ", but " + other +
                             ": a rank would combine a part with a whole")
      .help(
          "give its projections on the way in the style \"colwise\" and the one on the way out "
          "\"rowwise\"")
      .help("give none of its projections a style that leaves them cut");
}

}  // namespace

void check_tp_blocks(const TpPlan& plan, const ModelOutline& outline) {
  std::map<std::string_view, const TpStyle*> styles;
  for (const TpEntry& entry : plan.entries)
    for (const std::string& name : entry.modules) styles[name] = &entry.style;
  auto style_of = [&](std::string_view name) {
    auto found = styles.find(name);
    return found == styles.end() ? nullptr : found->second;
  };
  std::map<std::string_view, std::vector<std::pair<std::string_view, const TpStyle*>>> blocks;
  std::set<std::string_view> unusual;  // blocks of another build: nothing is known of how their
                                       // projections belong together
  for (const ModuleOutline& module : outline.modules) {
    const TpStyle* style = style_of(module.name);
    std::string_view parent = module_of(module.name),
                     child = std::string_view(module.name)
                                 .substr(parent.empty() ? 0 : parent.size() + 1);
    if (module.kind == ModuleKind::embedding && style != nullptr && style->output == shard_last)
      throw tp_plan_does_not_fit(
          module.name +
          " would leave what it looks up cut along its width, which nothing after it expects")
          .help("give it the style \"rowwise_rep\", which cuts the vocabulary")
          .help("give it the style \"colwise_rep\", which puts the width together");
    if (module.name == "lm_head" && style != nullptr && style->kind == row &&
        style->input == shard_last)
      throw tp_plan_does_not_fit(module.name + " has " + text_of(style) +
                                 ", but its input is whole: nothing before it leaves it cut")
          .help("give it the style \"colwise\"")
          .help("give it the style \"rowwise_rep\", which cuts its input itself");
    if (module.kind != ModuleKind::linear || parent.empty()) continue;
    if (is_one_of(kIn, child) || is_one_of(kOut, child))
      blocks[parent].emplace_back(child, style);
    else
      unusual.insert(parent);
  }
  for (const auto& [parent, children] : blocks)
    if (!unusual.contains(parent)) check_block(std::string(parent), children);

  // What runs between the blocks is whole on every rank or cut along the sequence, everywhere
  // alike.
  const std::string *part = nullptr, *whole = nullptr;
  for (const ModuleOutline& module : outline.modules) {
    const TpStyle* style = style_of(module.name);
    if (style == nullptr) continue;
    bool norm = style->kind == sequence || style->kind == sequence_all_gather;
    bool into_stream = style->kind == row || module.kind == ModuleKind::embedding;
    if (norm ? style->input == shard_1 : into_stream && style->output == shard_1)
      part = &module.name;
    if (into_stream && style->output == replicate) whole = &module.name;
  }
  if (part != nullptr && whole != nullptr)
    throw tp_plan_does_not_fit(*whole + " gives whole activations, but " + *part +
                               " works on a part of the sequence: they cannot be added")
        .help(
            "leave distributed.tp_plan out and set distributed.sequence_parallel = true: the "
            "model's own plan has both")
        .help("remove the patterns with the style \"sequence_parallel\"");
}

}  // namespace meshwright
