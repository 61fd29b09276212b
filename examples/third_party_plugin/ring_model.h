// The model under ring_zero. Every rank keeps all parameters (in the dtype of the computation), but
// updates only its slice of them: the ranks of a ring share gradients and optimizer state out (ZeRO
// stages 1 and 2: Rajbhandari et al. 2020), the rings hold copies.
//
// Works on any torch::nn::Module; only mixed precision needs hooks, and those at the outermost
// module alone.
#pragma once

#include <meshwright/parallel/parallel.h>

namespace ring_zero {

struct RingPolicy {
  std::shared_ptr<meshwright::Group> ring;    // shares the slices out
  std::shared_ptr<meshwright::Group> copies;  // the ranks with the same slice, or null
  meshwright::MixedPrecision mp;
  int64_t bucket_elements = 0;
  bool reduce_every_micro_batch = false;  // false: gradients wait whole for the last one
};

// Collective. Parameters that are not on the meta device are those of rank 0.
std::unique_ptr<meshwright::ParallelModel> make_ring_model(
    std::shared_ptr<torch::nn::Module> model, RingPolicy policy,
    std::shared_ptr<meshwright::World> world);

}  // namespace ring_zero
