#include "joint_collectives.h"

#include "group_impl.h"

namespace meshwright::detail {

using at::Tensor;

namespace {

JointCollectives* joint(const Group& group) {
  return dynamic_cast<JointCollectives*>(GroupAccess::of(group).transport.get());
}

int64_t bytes_of(const std::vector<Tensor>& tensors) {
  int64_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

}  // namespace

bool has_joint_collectives(const Group& group) {
  return group.size() > 1 && joint(group) != nullptr;
}

Work all_gather_each(Group& group, const std::vector<Tensor>& shards,
                     const std::vector<Tensor>& wholes) {
  const int64_t bytes = bytes_of(shards), n = group.size();
  if (bytes == 0) return {};
  return GroupAccess::begin(group, "all_gather", bytes * n, bytes * (n - 1), [&](Transport&) {
    return joint(group)->all_gather_each(shards, wholes);
  });
}

Work reduce_scatter_each(Group& group, const std::vector<Tensor>& wholes,
                         const std::vector<Tensor>& shards, double scale) {
  const int64_t bytes = bytes_of(shards), n = group.size();
  if (bytes == 0) return {};
  return GroupAccess::begin(group, "reduce_scatter", bytes * n, bytes * (n - 1), [&](Transport&) {
    return joint(group)->reduce_scatter_each(wholes, shards, scale);
  });
}

}  // namespace meshwright::detail
