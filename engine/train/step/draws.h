// Which ranks draw the same random numbers: those that compute with the same tokens (semantics
// 13.1).
#pragma once

#include <cstdint>

#include "engine/job/plan.h"

namespace meshwright::train {

// The number of the plan's rank among those that draw unlike each other: by the coordinates of dp
// and cp and, where tensor parallelism cuts the sequence, of tp.
inline int64_t place_of_draws(const plan::JobPlan& plan) {
  const std::optional<Mesh>& mesh = plan.mesh.device_mesh;
  if (!mesh) return plan.rank;
  const int64_t place =
      mesh->coordinate(plan.rank, "dp") * mesh->size("cp") + mesh->coordinate(plan.rank, "cp");
  return plan::cuts_sequence(plan.tp) ? place * mesh->size("tp") + mesh->coordinate(plan.rank, "tp")
                                      : place;
}

// Before a forward of a pipeline: by the first layer of its stage, so that draws do not depend on
// the order in which a schedule runs the stages.
inline uint64_t forward_seed(uint64_t seed, int64_t step, int64_t first_layer, int64_t micro,
                             int64_t place) {
  for (int64_t part : {step, micro, first_layer, place})
    seed = (seed ^ static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du;
  return seed;
}

}  // namespace meshwright::train
