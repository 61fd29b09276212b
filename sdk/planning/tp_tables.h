// Tensor-parallel plans by name, and what stands whole in a block whose projections a plan cuts.
// Not public.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "footprint_parts.h"
#include "meshwright/plugin.h"
#include "meshwright/tp_plan.h"

namespace meshwright::tp {

// The plans that a strategy brings, for the rest of the process; again the same ones do nothing.
// Throws Error(conflict) for a name that another plan has. Thread-safe.
MESHWRIGHT_API void register_plans(const meshwright_strategy& strategy);
// Those and the built-in ones, sorted. Thread-safe.
MESHWRIGHT_API std::vector<std::string> plan_names();

// The modules of layers in which columns leave what they give cut: heads, or a part of an MLP.
class CutBlocks {
 public:
  CutBlocks(const TpPlan& plan, const footprint::ModuleIndex& index);
  // The one that a module of this name, or the parameters of a module itself, lie in; "": none.
  // Where a layer's own projections are cut, only what stands right beside them lies there.
  std::string_view around(std::string_view module) const;

 private:
  const footprint::ModuleIndex& index_;
  std::set<std::string_view> blocks_;
};

// What a module of a block sees that no style says it of: the stream between the blocks, alike on
// every rank, or heads, of which each rank has its own, so that the gradients of its parameters are
// parts of a sum. No shape tells one from the other: heads may be as wide as the model. The
// outline's own plan declares it, in Hugging Face's words: `replicated_with_grad_allreduce` is of
// heads, `replicated` of the stream; the later row wins. Norms of its own_sequence_plan are of the
// stream.
enum class Sees : uint8_t { unsaid, stream, heads };
Sees seen_by(const ModelOutline& outline, std::string_view module);

}  // namespace meshwright::tp
