// What tensor-parallel plans are refused for, and what stands whole in a block whose projections a
// plan cuts. Not public.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "footprint_parts.h"
#include "meshwright/error.h"
#include "meshwright/tp_plan.h"

namespace meshwright {

// A plan that the model's modules contradict.
inline Error tp_plan_does_not_fit(const std::string& message) {
  return Error(ErrorCode::tp_plan_does_not_fit, message).key("distributed.tp_plan");
}

// Head counts against tp, with the sizes that would work as help.
MESHWRIGHT_API void check_heads(const ModelOutline& outline, int64_t tp_size);

}  // namespace meshwright

namespace meshwright::tp {

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
