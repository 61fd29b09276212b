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
  std::vector<Part> gradients;   // of the first step, before they are clipped
  double clipped_by = 1;         // the factor of the first step, as its norm has it
  std::vector<Part> begin, end;  // weights, states and buffers
  comparison::RankSeen seen;
  int64_t accumulation = 1;
};

// Trains this rank's part of `toml`, with `sets` over it.
Captured run_job(const Request& request, const std::string& toml,
                 const std::vector<std::string>& sets, const std::shared_ptr<World>& world);

}  // namespace meshwright::prove
