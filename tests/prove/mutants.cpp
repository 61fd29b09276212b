// A strategy with one fault, which its option names: what `prove` is to find. Without one it is
// right.
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "meshwright/nn/module.h"
#include "meshwright/parallel/forwarding_model.h"
#include "meshwright/parallel/parallelize.h"
#include "meshwright/plugin_main.h"
#include "meshwright/sharded_strategy.h"

namespace {

using namespace meshwright;
using at::Tensor;

constexpr std::array kOptions = {choice_option(
    "fault", "\"none\"",
    "none|summed|averaged_twice|last_micro_batch|divided|rank_0_only|dropped|counted_twice|"
    "left_out|own_norm|drift|steps_add_up|not_updated|no_sum_behind_rows|"
    "scaled_output|scaled_backward|throws|crashes|exits|hangs",
    "What is wrong.")};

// Everything as the model within does it, but for the fault.
class Mutant final : public ForwardingModel {
 public:
  Mutant(std::unique_ptr<ParallelModel> inner, std::shared_ptr<World> world, std::string fault)
      : ForwardingModel(std::move(inner)), world_(std::move(world)), fault_(std::move(fault)) {}

  void begin_step() override {
    micro_batches_ = 0;
    ForwardingModel::begin_step();
  }
  void begin_micro_batch(GradientSync sync) override {
    ++micro_batches_;
    if (fault_ == "last_micro_batch" && sync == GradientSync::reduce) inner().begin_step();
    if (world_->rank() == 1) misbehave();
    ForwardingModel::begin_micro_batch(sync);
  }
  void end_step() override {
    ForwardingModel::end_step();
    const auto ranks = static_cast<double>(data_group()->size());
    if (fault_ == "summed") scale(ranks);
    if (fault_ == "averaged_twice") scale(1 / ranks);
    if (fault_ == "divided") scale(1.0 / micro_batches_);
    if (fault_ == "rank_0_only" && world_->rank() > 0) scale(1.25);
    c10::NoGradGuard no_grad;
    if (fault_ == "dropped")
      for (const ParallelParameter& p : parameters())
        if (p.name == "model.norm.weight" && p.grad.defined()) Tensor(p.grad).zero_();
    if (fault_ == "steps_add_up") {
      std::vector<Tensor> now;
      for (const FlatParameterGroup& group : update_groups()) now.push_back(group.grads.clone());
      for (size_t i = 0; i < before_.size(); ++i) Tensor(update_groups()[i].grads).add_(before_[i]);
      before_ = std::move(now);
    }
  }
  double clip_grad_norm(double max_norm, double by) override {
    const double head = fault_ == "counted_twice" || fault_ == "left_out" ? of_head() * by * by : 0;
    const double norm = ForwardingModel::clip_grad_norm(0, by);
    double said = std::sqrt(norm * norm + (fault_ == "left_out" ? -head : head));
    if (fault_ == "own_norm") said *= 1 + 0.5 * static_cast<double>(world_->rank());
    if (max_norm > 0) scale(std::min(1.0, max_norm / (said + 1e-6)));
    return said;
  }
  void after_optimizer_step() override {
    c10::NoGradGuard no_grad;
    if (fault_ == "drift" && world_->rank() == 1 && ++written_ > 1)
      for (const FlatParameterGroup& group : update_groups()) Tensor(group.values).add_(1e-9);
    if (fault_ == "not_updated")
      for (const ParallelParameter& p : parameters())
        if (p.name == "model.embed_tokens.weight") {
          if (kept_.defined())
            Tensor(p.local).copy_(kept_);
          else if (++written_ > 0)
            kept_ = p.local.detach().clone();
        }
    ForwardingModel::after_optimizer_step();
  }

 private:
  void misbehave() const {
    if (fault_ == "throws") throw std::runtime_error("something odd");
    if (fault_ == "crashes") std::abort();
    if (fault_ == "exits") std::_Exit(7);
    if (fault_ == "hangs") std::this_thread::sleep_for(std::chrono::hours(1));
  }
  void scale(double by) {
    c10::NoGradGuard no_grad;
    for (const FlatParameterGroup& group : update_groups()) Tensor(group.grads).mul_(by);
  }
  // The squares of the head's gradient on all ranks.
  double of_head() {
    Tensor sum = at::zeros({1}, at::kDouble);
    for (const ParallelParameter& p : parameters())
      if (p.name == "lm_head.weight" && p.grad.defined())
        sum.add_(p.grad.to(at::kDouble).square().sum());
    world_->everyone()->all_reduce(sum, ReduceOp::sum).wait();
    return sum.item<double>();
  }

  std::shared_ptr<World> world_;
  std::string fault_;
  double micro_batches_ = 0;
  int64_t written_ = 0;
  std::vector<Tensor> before_;
  Tensor kept_;
};

// Faults within the model, behind what the strategy has attached.
void spoil(torch::nn::Module& model, const std::string& fault) {
  for (const auto& item : model.named_modules()) {
    HookHost* host = HookHost::of(*item.value());
    if (host == nullptr) continue;
    if (fault == "no_sum_behind_rows" && item.key() == "model.layers.0.mlp.down_proj")
      host->after_forward.clear();
    if (fault == "scaled_output" && item.key() == "model.layers.1.mlp.up_proj")
      host->after_forward.push_back([](torch::nn::Module&, TensorRefs& results) {
        *results.front() = *results.front() * 1.0001;
      });
    if (fault == "scaled_backward" && item.key() == "model.layers.0.mlp")
      host->after_forward.push_back([](torch::nn::Module&, TensorRefs& results) {
        if (results.front()->requires_grad())
          results.front()->register_hook([](const Tensor& g) { return g * 2; });
      });
  }
}

class Mutants final : public ShardedStrategy {
 public:
  std::unique_ptr<ParallelModel> parallelize(ParallelizeRequest& request) override {
    const std::string fault = request.config.own().get_string("fault");
    std::unique_ptr<ParallelModel> made = execute_plan(request, plan_of(*this, request));
    spoil(*request.model, fault);
    return std::make_unique<Mutant>(std::move(made), request.world, fault);
  }
};

constexpr std::array kStrategies = {describe<Mutants>(
    {.name = "mutants", .summary = "Fully sharded, with one fault", .options = kOptions})};

}  // namespace

MESHWRIGHT_PLUGIN("mutants", "1.0.0", "v", "l", "What prove is to find", kStrategies)
