// A model of one's own, of two Linears, with values before it is made parallel.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

#include "meshwright/nn/layers.h"
#include "meshwright/nn/module.h"
#include "meshwright/trainer.h"

namespace meshwright {

struct PairImpl : torch::nn::Module {
  PairImpl() {
    up = register_module("up", Linear(torch::nn::LinearOptions(6, 10)));
    down = register_module("down", Linear(torch::nn::LinearOptions(10, 3).bias(false)));
  }
  at::Tensor forward(const at::Tensor& x) { return down(up(x).tanh()); }
  Linear up{nullptr}, down{nullptr};
};
MESHWRIGHT_MODULE(Pair);

// A job that trains four rows a step in float32, with these keys as well: text of TOML.
inline Job pair_job(const std::vector<std::pair<std::string, std::string>>& more) {
  Job job;
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"distributed.strategy", "\"ddp\""},
           {"distributed.mp_policy.param_dtype", "\"float32\""},
           {"distributed.mp_policy.output_dtype", "\"float32\""},
           {"step_scheduler.global_batch_size", "4"},
           {"step_scheduler.local_batch_size", "4"}})
    job.set(key, value);
  for (const auto& [key, value] : more) job.set(key, value);
  return job;
}

}  // namespace meshwright
