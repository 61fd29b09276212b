// A strategy with a ParallelModel of its own, right or with one fault: copies whose parameters lie
// in one buffer with padding behind them, and gradients in another.
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "meshwright/mesh_plan.h"
#include "meshwright/parallel/parallelize.h"
#include "meshwright/plugin_main.h"

namespace {

using namespace meshwright;
using at::Tensor;

constexpr std::array kOptions = {choice_option(
    "fault", "\"none\"",
    "none|not_contiguous|padding_counted|counts_copies|skips_alone|moving_average|random_start|"
    "decays_twice|last_digit",
    "What is wrong.")};

class Copies final : public ParallelModel {
 public:
  Copies(std::shared_ptr<torch::nn::Module> model, std::shared_ptr<World> world, std::string fault)
      : model_(std::move(model)), world_(std::move(world)), fault_(std::move(fault)) {
    c10::NoGradGuard no_grad;
    int64_t size = 0;
    for (const auto& item : model_->named_parameters()) size += item.value().numel();
    used_ = size;
    const at::TensorOptions options = model_->parameters().front().options().device(at::kCPU);
    values_ = at::zeros({size + kPadding}, options);
    grads_ = at::zeros_like(values_);
    int64_t at = 0;
    for (const auto& item : model_->named_parameters()) {
      const Tensor& p = item.value();
      const std::vector<int64_t> shape = p.sizes().vec();
      const Tensor here = values_.narrow(0, at, p.numel()).view(shape);
      if (p.is_meta()) {
        p.unsafeGetTensorImpl()->shallow_copy_from(here.getIntrusivePtr());
      } else {
        here.copy_(p);
        p.set_data(here);
      }
      const Tensor grad = grads_.narrow(0, at, p.numel()).view(shape);
      p.mutable_grad() = grad;
      ParallelParameter one;
      one.name = item.key();
      one.local = here;
      one.grad = grad;
      one.global_shape = shape;
      one.region = Region::whole(shape);
      if (world_->size() > 1) one.placement = {{"dp", "replicate"}};
      parameters_.push_back(std::move(one));
      at += p.numel();
    }
    groups_.push_back({values_, grads_});
  }

  void begin_step() override { grads_.zero_(); }
  void begin_micro_batch(GradientSync) override {
    if (fault_ == "moving_average") grads_.mul_(0.5);
  }
  void end_step() override {
    c10::NoGradGuard no_grad;
    const Tensor before = grads_.clone();
    world_->everyone()->all_reduce(grads_, ReduceOp::sum).wait();
    grads_.div_(static_cast<double>(world_->size()));
    // A copy was reduced in place of what is not contiguous.
    if (fault_ == "not_contiguous")
      for (const ParallelParameter& p : parameters_)
        if (p.name == "lm_head.weight") {
          const int64_t at = p.grad.storage_offset();
          grads_.narrow(0, at, p.grad.numel()).copy_(before.narrow(0, at, p.grad.numel()));
        }
    if (fault_ == "padding_counted") grads_.narrow(0, used_, kPadding).fill_(1);
  }
  const std::vector<ParallelParameter>& parameters() const override { return parameters_; }
  const std::vector<FlatParameterGroup>& update_groups() const override { return groups_; }
  void after_optimizer_step() override {
    c10::NoGradGuard no_grad;
    ++written_;
    const bool other = world_->rank() == 1;
    // The first call is of the values at the start.
    if (fault_ == "skips_alone" && other && written_ == 3) values_.copy_(kept_);
    kept_ = values_.clone();
    for (const ParallelParameter& p : parameters_) {
      if (p.name != "lm_head.weight" || written_ < 2) continue;
      if (fault_ == "decays_twice") Tensor(p.local).slice(0, p.local.size(0) - 3).mul_(0.999);
      if (fault_ == "last_digit" && other) Tensor(p.local).view(-1)[0].mul_(1 + 2e-7);
    }
  }
  bool values_written(const ValuesWritten& written) override {
    if (fault_ != "random_start" || written.by != ValuesWritten::By::initialization) return false;
    c10::NoGradGuard no_grad;
    for (const ParallelParameter& p : parameters_)
      if (p.name == "model.norm.weight")
        Tensor(p.local).add_(0.01 * static_cast<double>(world_->rank()));
    return true;
  }
  double clip_grad_norm(double max_norm, double scale) override {
    c10::NoGradGuard no_grad;
    grads_.mul_(scale);
    const int64_t counted = fault_ == "padding_counted" ? grads_.numel() : used_;
    double squares = grads_.narrow(0, 0, counted).to(at::kDouble).square().sum().item<double>();
    if (fault_ == "counts_copies") squares *= static_cast<double>(world_->size());
    const double norm = std::sqrt(squares);
    if (max_norm > 0) grads_.mul_(std::min(1.0, max_norm / (norm + 1e-6)));
    return norm;
  }
  Tensor full_tensor(std::string_view name) override {
    for (const ParallelParameter& p : parameters_)
      if (p.name == name) return p.local.detach().clone();
    throw Error(ErrorCode::internal, "no parameter is named " + std::string(name));
  }
  void summon_full_parameters(const std::function<void()>& body) override { body(); }
  std::shared_ptr<Group> data_group() override { return world_->everyone(); }

 private:
  static constexpr int64_t kPadding = 5;
  std::shared_ptr<torch::nn::Module> model_;
  std::shared_ptr<World> world_;
  std::string fault_;
  int64_t used_ = 0, written_ = 0;
  Tensor values_, grads_, kept_;
  std::vector<ParallelParameter> parameters_;
  std::vector<FlatParameterGroup> groups_;
};

class OwnModel final : public Strategy {
 public:
  MeshPlan plan_mesh(const MeshRequest& request) const override {
    constexpr std::array<std::string_view, 5> kRefused = {"tp", "pp", "cp", "ep", "dp_replicate"};
    refuse_sizes(request, "own_model", kRefused);
    MeshPlan plan;
    plan.dp = resolve_dp_size(request);
    return plan;
  }
  std::unique_ptr<ParallelModel> parallelize(ParallelizeRequest& request) override {
    return std::make_unique<Copies>(request.model, request.world,
                                    request.config.own().get_string("fault"));
  }
};

constexpr std::array kStrategies = {describe<OwnModel>(
    {.name = "own_model", .summary = "Copies in one buffer", .options = kOptions})};

}  // namespace

MESHWRIGHT_PLUGIN("own_model", "1.0.0", "v", "l", "A model of its own", kStrategies)
