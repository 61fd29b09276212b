// Products that overlap with the collectives of sequence parallelism (asynchronous tensor
// parallelism): what a rank holds already is computed while the other ranks' parts are on their
// way. float32 on the CPU, or any dtype and device that at::mm takes.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "meshwright/parallel/collectives.h"
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
