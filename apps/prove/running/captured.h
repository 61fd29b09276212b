// What a run of the shrunk job leaves behind, on one rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/prove/findings.h"
#include "meshwright/parallel/group.h"
#include "meshwright/region.h"
#include "meshwright/trainer.h"
#include "sdk/kit/comparison/diagnosis.h"

namespace meshwright::prove {

// A part of a tensor that is whole somewhere else.
struct Part {
  std::string name;
  std::vector<int64_t> shape;
  Region region = Region::run(0, 0);
  at::Tensor values;
};

struct Captured {
  std::vector<StepResult> steps;
  double evaluated = 0;
  std::vector<std::vector<Part>> gradients;  // of each step, as they are clipped
  std::vector<double> clipped_by;            // their factors, as the norms have them
  // Weights, states and buffers: before the first step, and after each.
  std::vector<std::vector<Part>> states;
  comparison::RankSeen seen;
  int64_t accumulation = 1;
};

// Trains this rank's part of `toml`, with `sets` over it. `last`: only the last so many
// micro-batches of each step have a loss; 0: all of them.
Captured run_job(const Request& request, const std::string& toml,
                 const std::vector<std::string>& sets, const std::shared_ptr<World>& world,
                 int64_t last = 0);

}  // namespace meshwright::prove
