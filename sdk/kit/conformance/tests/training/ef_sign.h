// The example of docs/plugins.md, "A strategy with compressed gradients", to the letter.
#pragma once

// [example]
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <meshwright/parallel/forwarding_model.h>
#include <meshwright/parallel/parallelize.h>
#include <meshwright/plugin_main.h>
#include <meshwright/sharded_strategy.h>

#include <array>

namespace ef_sign {

using namespace meshwright;

// Replicas tell each other the signs of their gradients and one scale. What that leaves out of a
// gradient is added to the next one (EF-signSGD, Karimireddy et al. 2019).
class Compressed : public ForwardingModel {
 public:
  Compressed(std::unique_ptr<ParallelModel> inner, std::shared_ptr<Group> replicas)
      : ForwardingModel(std::move(inner)), replicas_(std::move(replicas)) {
    for (const FlatParameterGroup& group : update_groups())
      residuals_.push_back(at::zeros_like(group.values));
  }
  void end_step() override {
    inner().end_step();  // means over the ranks of this replica
    if (replicas_->size() == 1) return;
    c10::NoGradGuard no_grad;
    for (size_t i = 0; i < residuals_.size(); ++i) {
      const at::Tensor gradient = update_groups()[i].grads;
      residuals_[i].add_(gradient);
      const at::Tensor sign = residuals_[i].sign().to(at::kChar),
                       scale = residuals_[i].abs().mean();
      const at::Tensor signs = gather(sign), scales = gather(scale.view({1}));
      residuals_[i].sub_(sign * scale);
      gradient.zero_();
      for (int64_t r = 0; r < replicas_->size(); ++r)
        gradient.add_(signs[r] * scales[r], 1.0 / static_cast<double>(replicas_->size()));
    }
  }
  // Checkpoints keep what each replica still owes.
  std::vector<StateTensor> state_tensors() const override {
    return state_beside(inner(), "residual", residuals_,
                        StateReplica{replicas_->rank(), replicas_->size()});
  }
  std::string independent_axis() const override { return ""; }  // all replicas stay equal

 private:
  // [replicas, n] of [n]
  at::Tensor gather(const at::Tensor& mine) const {
    at::Tensor all = at::empty({replicas_->size(), mine.numel()}, mine.options());
    replicas_->all_gather(mine, all.view({-1})).wait();
    all[replicas_->rank()].copy_(mine);
    return all;
  }
  std::shared_ptr<Group> replicas_;
  std::vector<at::Tensor> residuals_;  // beside update_groups()
};

class EfSign : public ShardedStrategy {
 public:
  // Without dp_replicate_size each data-parallel rank is a replica.
  MeshPlan plan_mesh(const MeshRequest& request) const override {
    // Under tp a norm lies whole on ranks whose other parts, and so their scales, differ.
    constexpr std::array<std::string_view, 3> kRefused = {"ep", "pp", "tp"};
    refuse_sizes(request, "ef_sign", kRefused);
    MeshRequest copies = request;
    int64_t& replicas = copies.config.sizes().dp_replicate;
    if (replicas == 1) replicas = resolve_dp_size(request);
    return plan_sharded_mesh(copies, /*alone=*/true);
  }
  ShardingPlan plan_sharding(const ShardingRequest& request) const override {
    ShardingPlan plan = ShardedStrategy::plan_sharding(request);
    plan.gradient_tolerance = 0.9;
    int64_t trained = 0;
    for (const UnitCost& unit : footprint_of(request, plan).units) trained += unit.updated;
    const int64_t replicas = request.mesh.device_mesh->size("dp_replicate");
    OwnCost& cost = plan.own_cost.emplace();
    const int64_t element = dtype_size(request.workload.storage);
    cost.bytes.optimizer = trained * element;
    // One product at a time, and signs as bytes: this rank's and those of all replicas.
    cost.bytes.transient = trained * (element + 1 + replicas);
    for (const int64_t bytes : {trained, int64_t{4}})  // signs, and the scale
      cost.schedule.push_back({.phase = Communication::Phase::reduction,
                               .axis = "dp_replicate",
                               .op = "all_gather",
                               .ranks = replicas,
                               .count = 1,  // a step: the host has one update group
                               .payload = bytes * replicas});
    return plan;
  }
  std::unique_ptr<ParallelModel> parallelize(ParallelizeRequest& request) override {
    std::unique_ptr<ParallelModel> inner = execute_plan(request, plan_of(*this, request));
    const DeviceMesh mesh(*request.mesh.device_mesh, request.world);
    return std::make_unique<Compressed>(std::move(inner), mesh.group("dp_replicate"));
  }

 protected:
  // The SDK averages within a replica only: the rest is end_step()'s.
  ShardingPolicy sharding_policy(const StrategyConfig&) const override {
    return {.independent_replicas = true};
  }
};

}  // namespace ef_sign
// [example]
