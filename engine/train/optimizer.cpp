#include "engine/train/optimizer.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "meshwright/error.h"

namespace meshwright::train {
namespace {

using at::Tensor;

struct Lists {
  std::vector<Tensor> values, grads;
};

constexpr int64_t kPiece = 1 << 20;

// Calls of a kernel, which wants gradients of the values' dtype: one for all groups where they are so; else piece by piece, with a copy of
// the piece's gradients alone. `states`: lists beside the groups.
template <class F>
void for_each_call(const std::vector<UpdateGroup>& groups, const std::vector<std::vector<Tensor>*>& states, F&& call) {
  Lists all;
  std::vector<std::vector<Tensor>> state(states.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto& [values, grads] = groups[i];
    if (values.scalar_type() == grads.scalar_type()) {
      all.values.push_back(values);
      all.grads.push_back(grads);
      for (size_t s = 0; s < states.size(); ++s) state[s].push_back(states[s]->at(i));
      continue;
    }
    for (int64_t at = 0; at < values.numel(); at += kPiece) {
      int64_t count = std::min(kPiece, values.numel() - at);
      std::vector<std::vector<Tensor>> piece;
      for (const auto* list : states) piece.push_back({list->at(i).narrow(0, at, count)});
      call(Lists{{values.narrow(0, at, count)}, {grads.narrow(0, at, count).to(values.scalar_type())}}, piece);
    }
  }
  if (!all.values.empty()) call(all, state);
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
    for_each_call(groups, {&average_, &square_}, [&](const Lists& lists, std::vector<std::vector<Tensor>>& state) {
      // The kernels read the count from a float tensor of the same device.
      std::vector<Tensor> counts;
      for (const Tensor& values : lists.values)
        counts.push_back(!counts.empty() && counts[0].device() == values.device()
                             ? counts[0]
                             : at::full({}, static_cast<double>(steps), values.options().dtype(at::kFloat)));
      at::_fused_adamw_(lists.values, lists.grads, state[0], state[1], {}, counts, lr, beta1_, beta2_, weight_decay_, eps_,
                        /*amsgrad=*/false, /*maximize=*/false);
    });
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
    std::vector<std::vector<Tensor>*> states;
    if (momentum_ > 0) states.push_back(&momentum_buffers_);
    for_each_call(groups, states, [&](const Lists& lists, std::vector<std::vector<Tensor>>& state) {
      at::_fused_sgd_(lists.values, lists.grads, state.empty() ? std::vector<Tensor>() : state[0], weight_decay_, momentum_, lr,
                      /*dampening=*/0, /*nesterov=*/false, /*maximize=*/false, first);
    });
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
