#include "outer.h"

#include <meshwright/parallel/forwarding_model.h>
#include <meshwright/parallel/parallelize.h>
#include <meshwright/parallel/plugin_runtime.h>

#include <algorithm>

namespace diloco {

using namespace meshwright;
using at::Tensor;

void OuterOptimizer::start(const std::vector<FlatParameterGroup>& groups) {
  c10::NoGradGuard no_grad;
  const bool first = weights_.empty();
  for (size_t i = 0; i < groups.size(); ++i) {
    const Tensor values = groups[i].values.detach();
    if (first) {
      weights_.push_back(values.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true));
      momenta_.push_back(at::zeros_like(weights_.back()));
      means_.push_back(at::empty_like(weights_.back()));
    } else {
      weights_[i].copy_(values);
      momenta_[i].zero_();
    }
  }
}

void OuterOptimizer::step(const std::vector<FlatParameterGroup>& groups, Group& replicas) {
  c10::NoGradGuard no_grad;
  // All under way before the first is waited for.
  std::vector<Work> sums;
  for (size_t i = 0; i < groups.size(); ++i) {
    means_[i].copy_(groups[i].values.detach()).div_(static_cast<double>(replicas.size()));
    if (replicas.size() > 1) sums.push_back(replicas.all_reduce(means_[i]));
  }
  for (Work& sum : sums) sum.wait();
  for (size_t i = 0; i < groups.size(); ++i) {
    if (policy_.momentum == 0) {
      weights_[i].lerp_(means_[i], policy_.lr);  // at 1 it is the mean itself
    } else {
      // torch's SGD with nesterov = true, whose gradient is the way back from the mean.
      const Tensor gradient = means_[i].neg_().add_(weights_[i]);
      momenta_[i].mul_(policy_.momentum).add_(gradient);
      weights_[i].sub_(gradient.add_(momenta_[i], policy_.momentum), policy_.lr);
    }
    groups[i].values.detach().copy_(weights_[i]);
  }
}

namespace {

class DilocoModel final : public ForwardingModel {
 public:
  DilocoModel(std::unique_ptr<ParallelModel> inner, std::shared_ptr<Group> replicas,
              const OuterPolicy& policy)
      : ForwardingModel(std::move(inner)),
        replicas_(std::move(replicas)),
        policy_(policy),
        outer_(policy) {
    outer_.start(update_groups());
  }

  bool values_written(const ValuesWritten& written) override {
    using By = ValuesWritten::By;
    const bool changed = inner().values_written(written);
    if (written.by == By::optimizer)
      return meet(written.steps % policy_.sync_every == 0) || changed;
    // From a checkpoint the outer weights came along, unless another strategy made it.
    if (written.by != By::checkpoint || !written.missing.empty()) outer_.start(update_groups());
    return changed;
  }

  // A run ends with one model. Any other checkpoint keeps the round as it is, so that who goes on
  // from it does what an unbroken run does.
  bool before_save(SaveReason reason, int64_t steps) override {
    const bool changed = inner().before_save(reason, steps);
    return meet(reason == SaveReason::end && steps % policy_.sync_every != 0) || changed;
  }

  std::vector<StateTensor> state_tensors() const override {
    std::vector<StateTensor> out = state_beside(inner(), "outer_weights", outer_.weights());
    std::ranges::move(state_beside(inner(), "outer_momentum", outer_.momenta()),
                      std::back_inserter(out));
    return out;
  }

 private:
  bool meet(bool now) {
    if (now) outer_.step(update_groups(), *replicas_);
    return now;
  }

  std::shared_ptr<Group> replicas_;
  OuterPolicy policy_;
  OuterOptimizer outer_;
};

}  // namespace

std::unique_ptr<ParallelModel> with_outer_steps(std::unique_ptr<ParallelModel> inner,
                                                std::shared_ptr<Group> replicas,
                                                const OuterPolicy& policy) {
  return std::make_unique<DilocoModel>(std::move(inner), std::move(replicas), policy);
}

std::unique_ptr<ParallelModel> parallelize(Strategy& strategy, ParallelizeRequest& request) {
  std::unique_ptr<ParallelModel> inner = execute_plan(request, plan_of(strategy, request));
  DeviceMesh groups(*request.mesh.device_mesh, request.world);
  return with_outer_steps(std::move(inner), groups.group("dp_replicate"),
                          policy_of(request.config.own()));
}

}  // namespace diloco

MESHWRIGHT_PLUGIN_RUNS_WITH(diloco::parallelize)
