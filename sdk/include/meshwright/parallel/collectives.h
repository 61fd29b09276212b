// Collectives that autograd differentiates: what a module may call in its forward. All are
// collective over the group, and so are their backwards: every rank must run backward through them,
// in the same order. Sizes are those of a rank; dimension `dim` may be negative.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <type_traits>
#include <vector>

#include "meshwright/parallel/group.h"

namespace meshwright {

using GroupPtr = std::shared_ptr<Group>;

// The sum of x over the ranks, on every rank. Backward: the gradient as it is, for a result that
// all ranks go on to use alike (Megatron's g).
MESHWRIGHT_API at::Tensor all_reduce(const at::Tensor& x, const GroupPtr& group);
// x as it is; backward: the sum of the ranks' gradients (Megatron's f).
MESHWRIGHT_API at::Tensor copy_to(const at::Tensor& x, const GroupPtr& group);
// The ranks' x one after the other along `dim`; all must have one shape. Backward: the sum of the
// ranks' gradients, each rank its part.
MESHWRIGHT_API at::Tensor all_gather(const at::Tensor& x, int64_t dim, const GroupPtr& group);
// The same, for a result that all ranks go on to use alike: backward gives each rank its part of
// the gradient, which all hold.
MESHWRIGHT_API at::Tensor all_gather_replicated(const at::Tensor& x, int64_t dim,
                                                const GroupPtr& group);
// The sum over ranks, each its part of `dim`, whose size the group's size must divide. Backward:
// the parts' gradients gathered.
MESHWRIGHT_API at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, const GroupPtr& group);
// This rank's part of `dim`; backward: the parts' gradients gathered. Between regions where all
// ranks hold the same x.
MESHWRIGHT_API at::Tensor split_along(const at::Tensor& x, int64_t dim, const GroupPtr& group);
// Rows to ranks: the first in_splits[0] rows of x go to rank 0, and so on; out_splits[r] rows come
// from rank r. Backward: the way back.
MESHWRIGHT_API at::Tensor all_to_all(const at::Tensor& x, std::vector<int64_t> in_splits,
                                     std::vector<int64_t> out_splits, const GroupPtr& group);

class ParallelModel;       // meshwright/parallel/parallel.h
struct ParallelParameter;  // the same

// Without a derivative, on the CPU: a tensor; of a parameter the whole one (collective, on every
// rank); anything else as it is. Throws Error(device_unavailable) for a tensor that is neither
// there nor on a CUDA device.
MESHWRIGHT_API at::Tensor to_cpu(const at::Tensor& tensor);
MESHWRIGHT_API at::Tensor to_cpu(ParallelModel& model, const ParallelParameter& parameter);
template <class T>
  requires(!std::is_base_of_v<at::TensorBase, std::remove_cvref_t<T>>)
T to_cpu(T value) {
  return value;
}

}  // namespace meshwright
