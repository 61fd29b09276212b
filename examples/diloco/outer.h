// The outer half of DiLoCo (Douillard et al. 2023): replicas train by themselves for some steps,
// then all move along the mean of what they found.
#pragma once

#include <meshwright/parallel/parallel.h>

#include "options.h"

namespace diloco {

// The tensors of the outer optimizer, in float32: its weights, which all replicas hold alike, and
// their momentum; one of each beside every tensor that the inner optimizer updates.
class OuterOptimizer {
 public:
  explicit OuterOptimizer(const OuterPolicy& policy) : policy_(policy) {}
  // Weights become `groups`' values, momentum 0.
  void start(const std::vector<meshwright::FlatParameterGroup>& groups);
  // Collective over the replicas: one outer step, after which all of them have its weights.
  void step(const std::vector<meshwright::FlatParameterGroup>& groups, meshwright::Group& replicas);
  const std::vector<at::Tensor>& weights() const { return weights_; }
  const std::vector<at::Tensor>& momenta() const { return momenta_; }

 private:
  OuterPolicy policy_;
  std::vector<at::Tensor> weights_, momenta_, means_;
};

// `inner`: a model whose replicas along the group's axis go their own ways.
std::unique_ptr<meshwright::ParallelModel> with_outer_steps(
    std::unique_ptr<meshwright::ParallelModel> inner, std::shared_ptr<meshwright::Group> replicas,
    const OuterPolicy& policy);
// What both strategies run. Collective.
std::unique_ptr<meshwright::ParallelModel> parallelize(meshwright::Strategy& strategy,
                                                       meshwright::ParallelizeRequest& request);

}  // namespace diloco
