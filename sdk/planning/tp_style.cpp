#include <algorithm>
#include <utility>

#include "meshwright/tp_plan.h"
#include "sdk/base/text.h"
#include "tp_errors.h"

namespace meshwright {
namespace {

struct StyleRow {
  std::string_view text;
  TpStyle style;
};

using enum TpStyleKind;
using enum TpLayout;
constexpr StyleRow kStyles[] = {
    {"colwise", {column, replicate, shard_last, TpOutputKind::plain}},
    {"rowwise", {row, shard_last, replicate, TpOutputKind::plain}},
    {"colwise_rep", {column, replicate, replicate, TpOutputKind::plain}},
    // What current Hugging Face plans write for the head: the same as colwise_rep.
    {"colwise_gather_output", {column, replicate, replicate, TpOutputKind::plain}},
    {"rowwise_rep", {row, replicate, replicate, TpOutputKind::plain}},
    {"sequence_parallel", {sequence, shard_1, shard_1, TpOutputKind::sharded}},
};

// Strings that a model's own plan may hold and that say nothing about tensor parallelism of a
// Linear or Embedding.
bool skipped_in_own_plan(std::string_view text) {
  return text.starts_with("ep_") || text == "local_colwise" || text == "local_rowwise" ||
         text == "gather" || text == "grouped_gemm" || text == "moe_tp_experts" ||
         text == "packed_colwise" || text == "packed_rowwise" || text == "moe_identity_expert" ||
         text == "mla_kv_a_proj";
}

}  // namespace

std::string_view style_name(TpStyleKind kind) {
  constexpr std::pair<TpStyleKind, std::string_view> kNames[] = {
      {column, "colwise"},
      {row, "rowwise"},
      {sequence, "sequence_parallel"},
      {sequence_all_gather, "sequence_parallel_allgather"},
      {rotary, "rotary"}};
  for (const auto& [style, name] : kNames)
    if (style == kind) return name;
  return "";
}

std::string_view layout_name(TpLayout layout) {
  constexpr std::pair<TpLayout, std::string_view> kNames[] = {{replicate, "replicate"},
                                                              {shard_1, "shard(1)"},
                                                              {shard_last, "shard(-1)"},
                                                              {partial, "partial"}};
  for (const auto& [known, name] : kNames)
    if (known == layout) return name;
  return "";
}

std::optional<TpStyle> parse_style(std::string_view text, StyleContext context) {
  for (const StyleRow& row : kStyles)
    if (row.text == text) return row.style;
  if (text == kOfHeads || text == kOfStream) return std::nullopt;
  // Newer spellings that only models' own plans use: a row style whose input is whole.
  if (context == StyleContext::own_plan &&
      (text == "embedding_rowwise" || text == "rowwise_split_input"))
    return TpStyle{row, replicate, replicate, TpOutputKind::plain};
  if (context == StyleContext::own_plan && skipped_in_own_plan(text)) return std::nullopt;
  std::vector<std::string> names;
  for (const StyleRow& row : kStyles) names.emplace_back(row.text);
  Error error(ErrorCode::bad_tp_plan,
              "\"" + std::string(text) + "\" is not a tensor-parallel style; the styles are " +
                  text::join(names, ", ") + ", replicated and replicated_with_grad_allreduce");
  error.key("distributed.tp_plan");
  if (std::string near = nearest_name(text, names); !near.empty())
    error.help("did you mean \"" + near + "\"?");
  throw error.help(
      "use \"colwise\" for a projection that is split by output, \"rowwise\" for the one after it");
}

Chunk ceil_chunk(int64_t size, int64_t count, int64_t index) {
  int64_t c = count > 0 ? (size + count - 1) / count : size;
  return {std::min(size, index * c), std::min(size, (index + 1) * c)};
}

}  // namespace meshwright
