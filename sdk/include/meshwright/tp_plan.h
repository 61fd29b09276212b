// Tensor-parallel plans: module-name patterns to styles, as values. Everything here is pure.
//
// A pattern is split at dots and each part glob-matched (`*`, `?`, `[..]`) against the names of one
// level, so `*` never crosses a dot (semantics 2.7). Styles mean what
// torch.distributed.tensor.parallel's do (semantics 2.3).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/outline.h"
#include "meshwright/shared_options.h"

namespace meshwright {

enum class TpStyleKind : uint8_t { column, row, sequence, sequence_all_gather, rotary };
// Placement of an activation over tp; shard_last is the last dimension, shard_1 the sequence.
enum class TpLayout : uint8_t { replicate, shard_1, shard_last, partial };
// plain: the local tensor is handed to user code; sharded: the SDK tracks the layout for the next
// style or the loss.
enum class TpOutputKind : uint8_t { plain, sharded };

struct TpStyle {
  TpStyleKind kind = TpStyleKind::column;
  TpLayout input = TpLayout::replicate, output = TpLayout::shard_last;
  TpOutputKind output_kind = TpOutputKind::plain;
  uint32_t reserved = 0;  // for later versions
  bool operator==(const TpStyle&) const = default;
};

// Names as `plan --json` prints them: "colwise", "rowwise", "sequence_parallel",
// "sequence_parallel_allgather", "rotary".
MESHWRIGHT_API std::string_view style_name(TpStyleKind kind);
// "replicate", "shard(1)", "shard(-1)", "partial".
MESHWRIGHT_API std::string_view layout_name(TpLayout layout);

// One style string (semantics 2.2). nullopt: the string means "no style, skip the entry". Strings
// that are only skipped inside a model's own plan (ep_*, gather ...) and unknown ones throw
// Error(bad_tp_plan) listing the valid strings.
enum class StyleContext : uint8_t { alone, own_plan };
MESHWRIGHT_API std::optional<TpStyle> parse_style(std::string_view text,
                                                  StyleContext context = StyleContext::alone);

struct TpEntry {
  std::string pattern;
  TpStyle style;
  std::vector<std::string> modules;  // the modules it matches in the outline
  std::shared_ptr<const Later> later = {};
};

struct TpPlan {
  std::string source;  // "table LlamaForCausalLM", "own plan", "base plan", "custom", "named NAME",
                       // "none" (tp = 1)
  std::vector<TpEntry> entries;                // empty = nothing is sharded over tp
  std::vector<std::string> notices, warnings;  // e.g. each pattern that matches nothing
  std::shared_ptr<const Later> later = {};
};

struct TpPlanRequest {
  int64_t tp_size = 1;
  bool sequence_parallel = false;
  TpPlanChoice choice = {};
  std::shared_ptr<const Later> later = {};
};

using TpPlanEntries = std::vector<std::pair<std::string, TpStyle>>;

// True when `pattern` matches the whole dotted `name`, level by level.
MESHWRIGHT_API bool pattern_matches(std::string_view pattern, std::string_view name);
// One level: `*` any run, `?` one character, `[abc]`, `[a-z]`, `[!x]` sets, as Python's fnmatch.
MESHWRIGHT_API bool glob_matches(std::string_view pattern, std::string_view text);

// The plan tables, as pure lists (also for models there is no outline of): the base plan
// (semantics 2.5), and the table by architecture name (semantics 2.6), which gives nullopt when it
// has no row and throws Error(option_refused) where the row refuses sequence parallel.
MESHWRIGHT_API TpPlanEntries base_tp_plan(bool sequence_parallel);
MESHWRIGHT_API std::optional<TpPlanEntries> architecture_tp_plan(const ModelOutline& outline,
                                                                 bool sequence_parallel,
                                                                 std::vector<std::string>& notices);
// A model's own plan (semantics 2.4): prefixes, the added embedding, the lm_head rule, and what its
// own_sequence_plan adds under sequence parallelism. Throws Error(tp_plan_does_not_fit) when it has
// none.
MESHWRIGHT_API TpPlanEntries own_tp_plan(const ModelOutline& outline,
                                         bool sequence_parallel = false);

// The whole selection (semantics 2.1, 2.7, 2.8, 2.9): choice, matching, the checks of heads and of
// models with experts, resolve_tp_modules(). What Strategy::translate_tp_plan does by default.
// Throws Error(heads_not_divisible | unknown_tp_plan | bad_tp_plan | tp_plan_does_not_fit |
// option_refused).
MESHWRIGHT_API TpPlan select_tp_plan(const ModelOutline& outline, const TpPlanRequest& request);

// Where a plan leaves one parameter: the dimension split over tp, or nullopt when replicated. Rows
// are cut by ceil chunks.
MESHWRIGHT_API std::optional<int64_t> tp_shard_dim(const TpPlan& plan, const ModelOutline& outline,
                                                   std::string_view parameter);

// One styled module as it runs. Both halves of the product read this: what is planned and what runs
// cannot differ.
struct TpModule {
  std::string name;
  TpStyle style;  // input: the layout that really arrives, whatever the plan annotates
  // The norm's all-gather serves columns alone, so its backward is a reduce-scatter; of a column:
  // its input comes from such a norm, so it leaves its input's gradient a partial sum. Otherwise
  // the norm's backward takes the own part and the columns all-reduce.
  bool gathers_for_columns = false;
};
// The styled modules that the outline has (it may be a stage of the plan's model), in the plan's
// order. Throws Error(tp_plan_does_not_fit) where a sequence-parallel layer has a Linear or norm
// without a style, which would see only a part of the sequence, where one layer mixes both kinds of
// norms, and where a tied head and embedding would be cut differently.
MESHWRIGHT_API std::vector<TpModule> resolve_tp_modules(const TpPlan& plan,
                                                        const ModelOutline& outline);
// Replicated parameters whose gradients are partial sums over tp (semantics 2.10), in the outline's
// order: of sequence-parallel norms, of what sees heads among projections that are cut, and biases
// added after a reduce-scatter. Throws as above.
MESHWRIGHT_API std::vector<std::string> partial_gradient_parameters(const TpPlan& plan,
                                                                    const ModelOutline& outline);

// Throws Error(tp_plan_does_not_fit) for a plan that can be drawn but would compute something else
// than the model: when a block's projections do not belong together (q_proj cut, k_proj whole), an
// embedding would leave its width cut, the stream would be cut along the sequence in one place and
// whole in another, or the model's own plan does not say what a parameter sees that trains whole
// among cut projections. select_tp_plan() makes it a warning, running the plan an error.
MESHWRIGHT_API void check_tp_blocks(const TpPlan& plan, const ModelOutline& outline);

// Rank `index` of `count` owns [begin, end) of `size` rows: ceil(size / count) each, the last ones
// fewer or none.
struct Chunk {
  int64_t begin = 0, end = 0;
};
MESHWRIGHT_API Chunk ceil_chunk(int64_t size, int64_t count, int64_t index);

}  // namespace meshwright
