// A strategy with one fault, which its option names: what `prove` is to find. Without one it is
// right.
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "meshwright/nn/attention.h"
#include "meshwright/nn/module.h"
#include "meshwright/nn/moe.h"
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
    "scaled_output|scaled_backward|throws|crashes|exits|hangs|"
    "experts_summed|norms_of_stream|no_sum_before_columns|bias_times_tp|bias_on_every_rank|"
    "unsummed_norm|counted_tp_times|stage_norm|mean_of_means|auxiliary_scaled|auxiliary_lost|"
    "bias_each_micro_batch|bias_in_evaluation|bias_again|recompute_differs|other_experts|other_"
    "documents|"
    "block_left_out|tokens_twice|tied_lost|tied_apart",
    "What is wrong.")};

// Everything as the model within does it, but for the fault.
class Mutant final : public ForwardingModel {
 public:
  Mutant(std::unique_ptr<ParallelModel> inner, const ParallelizeRequest& request, std::string fault)
      : ForwardingModel(std::move(inner)),
        world_(request.world),
        model_(request.model),
        sizes_(request.config.sizes()),
        fault_(std::move(fault)) {
    // What this rank alone has of the gradient, before anyone sums it.
    for (const auto& item : model_->named_parameters())
      if (fault_ == "unsummed_norm" && item.key() == kNorm)
        item.value().register_hook([this](const Tensor& g) {
          const Tensor one = g.detach().clone();
          own_ = own_.defined() ? own_ + one : one;
        });
  }

  void begin_step() override {
    micro_batches_ = 0;
    ForwardingModel::begin_step();
  }
  void begin_micro_batch(GradientSync sync) override {
    ++micro_batches_;
    for (const auto& [name, block] : find_moe_blocks(*model_)) {
      Router& gate = block->gate();
      if (fault_ == "auxiliary_lost") gate->load_balance = nullptr;
      if (fault_ == "auxiliary_scaled" && gate->load_balance)
        gate->load_balance->add_ranks = [](std::vector<Tensor> sums) { sums.front().mul_(3); };
      if (fault_ == "bias_each_micro_batch" && micro_batches_ > 1) {
        c10::NoGradGuard no_grad;
        gate->e_score_correction_bias.add_(gate->load().to(at::kFloat).sub(1).sign(), 1e-3);
      }
    }
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
    if (fault_ == "experts_summed") scale_of(".experts.", static_cast<double>(sizes_.ep));
    if (fault_ == "bias_times_tp") scale_of("output.bias", static_cast<double>(sizes_.tp));
    c10::NoGradGuard no_grad;
    if (own_.defined()) {
      data_group()->all_reduce(own_, ReduceOp::sum).wait();
      own_.div_(static_cast<double>(data_group()->size()));
      for (const ParallelParameter& p : parameters())
        if (p.name == kNorm && p.grad.numel() > 0)
          Tensor(p.grad).copy_(own_.narrow(0, p.region.offsets[0], p.region.sizes[0]));
      own_ = Tensor();
    }
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
    if (fault_ == "counted_tp_times")
      said = std::sqrt(norm * norm + (static_cast<double>(sizes_.tp) - 1) * of_whole());
    if (fault_ == "stage_norm") said = std::sqrt(of_stage());
    if (fault_ == "own_norm") said *= 1 + 0.5 * static_cast<double>(world_->rank());
    if (max_norm > 0) scale(std::min(1.0, max_norm / (said + 1e-6)));
    return said;
  }
  void after_optimizer_step() override {
    c10::NoGradGuard no_grad;
    if (fault_ == "drift" && world_->rank() == 1 && ++written_ > 1)
      for (const FlatParameterGroup& group : update_groups()) Tensor(group.values).add_(1e-9);
    if (fault_ == "tied_apart" && world_->rank() == 1)
      for (const ParallelParameter& p : parameters())
        if (p.name == "model.embed_tokens.weight" || p.name == "lm_head.weight")
          Tensor(p.local).add_(1e-9);
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
  void scale_of(const std::string& part, double by) {
    c10::NoGradGuard no_grad;
    for (const ParallelParameter& p : parameters())
      if (p.name.find(part) != std::string::npos && p.grad.defined()) Tensor(p.grad).mul_(by);
  }
  // The squares of parameters that are whole on the ranks of tp.
  double of_whole() {
    Tensor sum = at::zeros({1}, at::kDouble);
    for (const ParallelParameter& p : parameters())
      for (const auto& [axis, how] : p.placement)
        if (axis == "tp" && how == "replicate" && p.grad.defined())
          sum.add_(p.grad.to(at::kDouble).square().sum());
    world_->everyone()->all_reduce(sum, ReduceOp::sum).wait();
    return sum.item<double>() / static_cast<double>(sizes_.tp);
  }
  // The squares of this rank's stage.
  double of_stage() {
    Tensor sum = at::zeros({1}, at::kDouble);
    for (const ParallelParameter& p : parameters())
      if (p.grad.defined()) sum.add_(p.grad.to(at::kDouble).square().sum());
    data_group()->all_reduce(sum, ReduceOp::sum).wait();
    return sum.item<double>();
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

  static constexpr const char* kNorm = "model.layers.0.input_layernorm.weight";
  std::shared_ptr<World> world_;
  std::shared_ptr<torch::nn::Module> model_;
  ParallelSizes sizes_;
  std::string fault_;
  Tensor own_;
  double micro_batches_ = 0;
  int64_t written_ = 0;
  std::vector<Tensor> before_;
  Tensor kept_;
};

bool in_backward() { return torch::autograd::get_current_graph_task_id() >= 0; }

// Each rank's mean over its own targets, of which they then take the mean.
Tensor as_mean_of_means(const Tensor& g, const std::shared_ptr<Group>& ranks) {
  const Tensor mine = g.flatten(0, 1).abs().sum(1).gt(0).sum().to(at::kDouble).view({1});
  Tensor mean = mine.clone();
  ranks->all_reduce(mean, ReduceOp::sum).wait();
  mean.div_(static_cast<double>(ranks->size()));
  return g * (mean / mine).to(g.scalar_type());
}

// Documents of a pack see one another while this is in place.
struct OneDocument {
  std::unique_ptr<SequenceScope> scope;
  void begin() {
    const std::shared_ptr<const Sequence> now = current_sequence();
    if (!now) return;
    auto without = std::make_shared<Sequence>(*now);
    without->documents = Tensor();
    scope = std::make_unique<SequenceScope>(std::move(without));
  }
};

// Faults within the model, behind what the strategy has attached.
void spoil(ParallelizeRequest& request, const std::string& fault) {
  const int64_t rank = request.world->rank();
  std::shared_ptr<Group> everyone;
  if (fault == "mean_of_means") {
    std::vector<int64_t> ranks;
    for (int64_t r = 0; r < request.world->size(); ++r) ranks.push_back(r);
    everyone = request.world->group("mutant", ranks);
  }
  for (const auto& item : request.model->named_modules()) {
    HookHost* host = HookHost::of(*item.value());
    if (host == nullptr) continue;
    const std::string& name = item.key();
    auto outputs = [&](std::function<Tensor(const Tensor&)> change) {
      host->after_forward.push_back(
          [change = std::move(change)](torch::nn::Module&, TensorRefs& results) {
            *results.front() = change(*results.front());
          });
    };
    auto gradients = [&](std::function<Tensor(const Tensor&)> change) {
      host->after_forward.push_back(
          [change = std::move(change)](torch::nn::Module&, TensorRefs& results) {
            if (results.front()->requires_grad()) results.front()->register_hook(change);
          });
    };
    if (fault == "no_sum_behind_rows" && name == "model.layers.0.mlp.down_proj")
      host->after_forward.clear();
    if (fault == "no_sum_before_columns" && name.starts_with("model.layers.1.mlp."))
      if (name.ends_with("gate_proj") || name.ends_with("up_proj")) host->before_forward.clear();
    if (fault == "scaled_output" && name == "model.layers.1.mlp.up_proj")
      outputs([](const Tensor& x) { return x * 1.0001; });
    if (fault == "scaled_backward" && name == "model.layers.0.mlp")
      gradients([](const Tensor& g) { return g * 2; });
    if (fault == "bias_on_every_rank" && name == "layers.1.attention.output")
      outputs(
          [bias = item.value()->named_parameters()["bias"]](const Tensor& x) { return x + bias; });
    if (fault == "mean_of_means" && name == "lm_head")
      gradients([everyone](const Tensor& g) { return as_mean_of_means(g, everyone); });
    // The second run draws other numbers.
    if (fault == "recompute_differs" && name == "model.layers.1.mlp.up_proj")
      outputs([](const Tensor& x) { return in_backward() ? x * 1.25 : x; });
    if (fault == "other_experts" && name == "model.layers.1.mlp.gate")
      host->after_forward.push_back([](torch::nn::Module&, TensorRefs& results) {
        if (in_backward()) *results.front() = results.front()->flip({-1});
      });
    if (fault == "bias_in_evaluation" && name == "layers.0.mlp.gate")
      host->before_forward.push_back([](torch::nn::Module& module, TensorRefs&) {
        c10::NoGradGuard no_grad;
        if (!module.is_training()) module.named_buffers()["e_score_correction_bias"].add_(1e-3);
      });
    if (fault == "bias_again" && name == "layers.0.mlp.gate")
      host->after_forward.push_back([](torch::nn::Module& module, TensorRefs&) {
        c10::NoGradGuard no_grad;
        if (in_backward()) module.named_buffers()["e_score_correction_bias"].add_(1e-3);
      });
    if (fault == "other_documents" && name == "model.layers.1.self_attn.core") {
      const auto one = std::make_shared<OneDocument>();
      host->before_forward.push_back([one](torch::nn::Module&, TensorRefs&) { one->begin(); });
      host->after_forward.push_back([one](torch::nn::Module&, TensorRefs&) { one->scope.reset(); });
    }
    // Of the keys' gradients, as a ring's last turn that is lost, or taken twice.
    if (fault == "block_left_out" && name == "model.layers.1.self_attn.k_proj" && rank == 1)
      gradients([](const Tensor& g) {
        Tensor out = g.clone();
        out.narrow(1, 0, 2).zero_();
        return out;
      });
    if (fault == "tokens_twice" && name == "model.layers.1.self_attn.v_proj" && rank == 1)
      gradients([](const Tensor& g) { return g * 2; });
  }
  // The end of a tied weight that the last stage has.
  if (fault == "tied_lost" && rank == 1)
    for (const auto& item : request.model->named_parameters())
      if (item.key() == "lm_head.weight" || item.key() == "model.embed_tokens.weight")
        item.value().register_hook([](const Tensor& g) { return g * 0; });
}

// Norms that see a rank's heads, held for norms of the stream.
std::unique_ptr<ParallelModel> with_norms_of_stream(const Strategy& strategy,
                                                    ParallelizeRequest& request) {
  ModelOutline outline = request.outline;
  for (auto& [pattern, style] : outline.own_tp_plan)
    if (style == "replicated_with_grad_allreduce") style = "replicated";
  ParallelizeRequest without{request.model,  outline,       request.mesh, request.tp,
                             request.config, request.world, request.plan};
  return execute_plan(without, plan_of(strategy, without));
}

class Mutants final : public ShardedStrategy {
 public:
  std::unique_ptr<ParallelModel> parallelize(ParallelizeRequest& request) override {
    const std::string fault = request.config.own().get_string("fault");
    std::unique_ptr<ParallelModel> made = fault == "norms_of_stream"
                                              ? with_norms_of_stream(*this, request)
                                              : execute_plan(request, plan_of(*this, request));
    spoil(request, fault);
    return std::make_unique<Mutant>(std::move(made), request, fault);
  }
};

constexpr std::array kStrategies = {describe<Mutants>(
    {.name = "mutants", .summary = "Fully sharded, with one fault", .options = kOptions})};

}  // namespace

MESHWRIGHT_PLUGIN("mutants", "1.0.0", "v", "l", "What prove is to find", kStrategies)
