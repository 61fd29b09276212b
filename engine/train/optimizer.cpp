#include "engine/train/optimizer.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "meshwright/error.h"

namespace meshwright::train {
namespace {

using at::Tensor;

struct Lists {
  std::vector<Tensor> values, grads;
};

// Tensors of one optimizer call; empty groups take no part.
Lists lists_of(const std::vector<UpdateGroup>& groups) {
  Lists out;
  for (const UpdateGroup& group : groups) {
    out.values.push_back(group.values);
    out.grads.push_back(group.grads);
  }
  return out;
}

void extend(std::vector<Tensor>& state, const std::vector<UpdateGroup>& groups) {
  for (size_t i = state.size(); i < groups.size(); ++i) state.push_back(at::zeros_like(groups[i].values));
}

class AdamW final : public Optimizer {
 public:
  explicit AdamW(const Options& table) : eps_(table.get_number("eps")), weight_decay_(table.get_number("weight_decay")) {
    const auto& betas = std::get<std::vector<double>>(table.value("betas"));
    if (betas.size() != 2)
      throw Error(ErrorCode::out_of_range, "AdamW has two betas, found " + std::to_string(betas.size()))
          .key("optimizer.betas")
          .at(table.origin("betas"))
          .help("set optimizer.betas = [0.9, 0.95]");
    beta1_ = betas[0];
    beta2_ = betas[1];
  }

  void step(const std::vector<UpdateGroup>& groups, double lr) override {
    c10::NoGradGuard no_grad;
    allocate(groups);
    ++steps;
    // The kernels read the count from a float tensor of the same device.
    std::vector<Tensor> counts(groups.size());
    for (size_t i = 0; i < groups.size(); ++i)
      counts[i] = i > 0 && counts[0].device() == groups[i].values.device()
                      ? counts[0]
                      : at::full({}, static_cast<double>(steps), groups[i].values.options().dtype(at::kFloat));
    Lists lists = lists_of(groups);
    at::_fused_adamw_(lists.values, lists.grads, average_, square_, {}, counts, lr, beta1_, beta2_, weight_decay_, eps_,
                      /*amsgrad=*/false, /*maximize=*/false);
  }
  std::vector<State> state() override { return {{"exp_avg", average_}, {"exp_avg_sq", square_}}; }
  void allocate(const std::vector<UpdateGroup>& groups) override {
    extend(average_, groups);
    extend(square_, groups);
  }
  const char* name() const override { return "adamw"; }

 private:
  double eps_, weight_decay_, beta1_ = 0.9, beta2_ = 0.95;
  std::vector<Tensor> average_, square_;
};

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const Options& table) : weight_decay_(table.get_number("weight_decay")), momentum_(table.get_number("momentum")) {}

  void step(const std::vector<UpdateGroup>& groups, double lr) override {
    c10::NoGradGuard no_grad;
    bool first = steps++ == 0;
    allocate(groups);
    Lists lists = lists_of(groups);
    at::_fused_sgd_(lists.values, lists.grads, momentum_buffers_, weight_decay_, momentum_, lr, /*dampening=*/0, /*nesterov=*/false,
                    /*maximize=*/false, first);
  }
  std::vector<State> state() override { return momentum_ > 0 ? std::vector<State>{{"momentum", momentum_buffers_}} : std::vector<State>(); }
  void allocate(const std::vector<UpdateGroup>& groups) override {
    if (momentum_ > 0) extend(momentum_buffers_, groups);
  }
  const char* name() const override { return "sgd"; }

 private:
  double weight_decay_, momentum_;
  std::vector<Tensor> momentum_buffers_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const Options& table) {
  if (table.get_string("name") == "sgd") return std::make_unique<Sgd>(table);
  return std::make_unique<AdamW>(table);
}

}  // namespace meshwright::train
