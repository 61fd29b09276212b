// What tensor parallelism hangs around forward: conversions of layouts, the masked look-up, the
// gather and the scatter in pieces.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "meshwright/nn/module.h"
#include "meshwright/parallel/collectives.h"
#include "meshwright/tp_plan.h"
#include "tp_pieces.h"

namespace torch::nn {
class LinearImpl;
}

namespace meshwright {
class AttentionCoreImpl;
}

namespace meshwright::detail {

// Ceil chunks along `dim` put together, on every rank; backward gives each its part.
at::Tensor join_chunks(const at::Tensor& x, int64_t dim, int64_t size, const GroupPtr& group);

class TpHooks : public std::enable_shared_from_this<TpHooks> {
 public:
  TpHooks(GroupPtr group, std::shared_ptr<World> world)
      : group_(std::move(group)), world_(std::move(world)) {}
  bool pieces = false;                                               // enable_async_tensor_parallel
  std::shared_ptr<bool> unfinished = std::make_shared<bool>(false);  // see Gathering

  // `size`: the whole output or input dimension that is cut; `linear`: nullptr for an embedding.
  void column(HookHost& host, const TpModule& styled, int64_t size, torch::nn::LinearImpl* linear);
  // `adapted`: something is added to the sum before it is reduced, so it is not made in pieces.
  void row(HookHost& host, const TpModule& styled, torch::nn::LinearImpl& linear, at::Tensor bias,
           int64_t size, bool adapted);
  // The first factor of an adapter, which takes the input of the Linear that is styled so.
  void factor_in(HookHost& host, const TpModule& styled, torch::nn::LinearImpl& factor);
  void vocabulary(HookHost& host, const TpModule& styled, Chunk rows, at::Tensor weight);
  void norm(HookHost& host, const TpModule& styled);
  // An attention core that drops probabilities of its rank's own heads.
  void own_draws(AttentionCoreImpl& core) const;

 private:
  // Whether a column gathers its input itself, while it computes.
  bool gathers_in_pieces(const TpModule& column) const;
  std::shared_ptr<Gathering> gathering_of(const at::Tensor& x);
  void column_pieces(HookHost& host, const TpModule& styled, torch::nn::LinearImpl& linear);
  void row_pieces(HookHost& host, const TpModule& styled, torch::nn::LinearImpl& linear);
  bool is_shared(const at::Tensor& x, TpLayout layout) const;
  // `size`: the whole last dimension, where that is cut.
  at::Tensor to_column(const at::Tensor& x, TpLayout from, int64_t size);
  at::Tensor reduced(const at::Tensor& x, TpLayout to);

  GroupPtr group_;
  std::shared_ptr<World> world_;
  // Projections beside each other take the same input: it is converted for the first of them.
  struct Shared {
    std::optional<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> from;
    at::Tensor to;                         // or
    std::shared_ptr<Gathering> gathering;  // in pieces
    TpLayout layout = TpLayout::replicate;
    bool training = false;
  } shared_;
};

}  // namespace meshwright::detail
