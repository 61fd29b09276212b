// What NCCL does beyond a transport's operations: collectives of several tensors in one call, so
// that each tensor may lie where it is used, and sums of scaled values.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sdk/base/transport.h"

namespace meshwright::detail {

class JointCollectives {
 public:
  virtual ~JointCollectives() = default;
  virtual Transport::FlightPtr all_gather_each(std::vector<at::Tensor> shards,
                                               std::vector<at::Tensor> wholes) = 0;
  virtual Transport::FlightPtr reduce_scatter_each(std::vector<at::Tensor> wholes,
                                                   std::vector<at::Tensor> shards,
                                                   double scale) = 0;
};

// Whether the functions below may be called; the same on all ranks of a group.
bool has_joint_collectives(const Group& group);
// As Group's all_gather() and reduce_scatter() of each pair, and counted as one. A shard may be its
// own slot of the whole. `scale`: factor of every rank's values, in their dtype.
Work all_gather_each(Group& group, const std::vector<at::Tensor>& shards,
                     const std::vector<at::Tensor>& wholes);
Work reduce_scatter_each(Group& group, const std::vector<at::Tensor>& wholes,
                         const std::vector<at::Tensor>& shards, double scale);

}  // namespace meshwright::detail
