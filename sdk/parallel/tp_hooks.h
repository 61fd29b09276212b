// Products that overlap with the collectives of sequence parallelism (asynchronous tensor
// parallelism): what a rank holds already is computed while the other ranks' parts are on their
// way. float32 on the CPU, or any dtype and device that at::mm takes.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>

#include "meshwright/nn/module.h"
#include "meshwright/parallel/collectives.h"
#include "meshwright/tp_plan.h"
#include "sdk/comm/parts.h"

namespace meshwright::detail {

// The gather of one input along the sequence, for the columns that take it. Collective: starts at
// once.
class Gathering {
 public:
  // `unfinished` becomes true when some of the columns had a backward and others not: then x got no
  // gradient.
  Gathering(const at::Tensor& x, GroupPtr group, std::shared_ptr<bool> unfinished = nullptr);
  ~Gathering();
  Gathering(const Gathering&) = delete;
  Gathering& operator=(const Gathering&) = delete;
  const at::Tensor& whole() {
    arrive();
    return whole_;
  }

 private:
  friend struct ColumnPieces;
  friend at::Tensor column_in_pieces(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                     const std::shared_ptr<Gathering>&, Trace&, const std::string&);
  void arrive();
  GroupPtr group_;
  std::shared_ptr<bool> unfinished_;
  at::Tensor own_, whole_;  // [batch, length / ranks, width], [batch, length, width]
  PartsGather parts_;
  bool arrived_ = false;
  int64_t uses_ = 0, done_ = 0;  // columns that took it, and whose backward is over
  at::Tensor grad_;              // of the whole, from those
};

// x [batch, length / ranks, in] gathered along the sequence, times weight [out, in] transposed,
// plus bias: [batch, length, out]. Backward: the gradient of x is summed over the ranks, each its
// part; it starts with the last of the columns that share `gathering`.
at::Tensor column_in_pieces(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const std::shared_ptr<Gathering>& gathering, Trace& trace,
                            const std::string& name);

// x [batch, length, in] times weight [out, in] transposed, summed over the ranks, each its part of
// the sequence: [batch, length / ranks, out].
at::Tensor row_in_pieces(const at::Tensor& x, const at::Tensor& weight, const GroupPtr& group,
                         Trace& trace, const std::string& name);

}  // namespace meshwright::detail

// What tensor parallelism hangs around forward: conversions of layouts, the masked look-up, the
// gather and the scatter in pieces.

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
