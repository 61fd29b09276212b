#include "engine/train/step/largest_of_ranks.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace meshwright::train {

std::vector<double> largest_of_ranks(World& world, const std::vector<double>& mine) {
  if (world.size() == 1) return mine;
  // Pinned, so that the copy to a device keeps nobody waiting.
  at::Tensor here =
      at::empty({static_cast<int64_t>(mine.size())},
                at::TensorOptions().dtype(at::kDouble).pinned_memory(world.device().is_cuda()));
  std::copy(mine.begin(), mine.end(), here.mutable_data_ptr<double>());
  at::Tensor all = here.to(world.device(), at::kDouble, /*non_blocking=*/true, /*copy=*/true);
  world.everyone()->all_reduce(all, ReduceOp::max, /*control=*/true).wait();
  here.copy_(all);
  world.check();
  const double* largest = here.const_data_ptr<double>();
  return {largest, largest + mine.size()};
}

}  // namespace meshwright::train
