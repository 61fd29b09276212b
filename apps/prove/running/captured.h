// What a run of the shrunk job leaves behind, on one rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/prove/findings.h"
#include "meshwright/error.h"
#include "meshwright/parallel/group.h"
#include "meshwright/region.h"
#include "meshwright/trainer.h"
#include "sdk/kit/comparison/diagnosis.h"
#include "sdk/kit/comparison/operators.h"

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
  std::vector<Part> evaluated_state;  // after the evaluation, which must not move any of it
  // Parameters of a plugin's model that are whole on the ranks of tp, and what is made of them.
  std::vector<std::pair<std::string, std::string>> own;
  comparison::RankSeen seen;
  std::vector<comparison::SeenOperator> operators;  // of Different::operators_of
  int64_t accumulation = 1;
  double approximate = 0;  // ShardingPlan::gradient_tolerance; 0: gradients are exact
  // Where a checkpoint was made: what it should hold, or why there is none; and the step after it.
  std::vector<Part> saved;
  std::optional<Error> not_saved;
  std::optional<StepResult> next;
};

// What is not trained as usual.
struct Different {
  // Another run of one process, which tells what is missing on the ranks.
  int64_t micro_batch = -1;        // the only one of each step that has a loss; -1: all
  bool without_auxiliary = false;  // the auxiliary losses of experts
  bool one_step = false;           // and no evaluation
  // A module whose operators, and those around it, are watched in the first step.
  std::string operators_of = {};
  // A folder of checkpoints to go on from, in the place of the first steps, and one to save to.
  std::string from = {}, to = {};
};

// Trains this rank's part of `toml`, with `sets` over it.
Captured run_job(const Request& request, const std::string& toml,
                 const std::vector<std::string>& sets, const std::shared_ptr<World>& world,
                 const Different& different = {});

}  // namespace meshwright::prove
