#include "engine/trainer/optimizer.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <utility>

#include "meshwright/error.h"
#include "meshwright/parallel/scalar_type.h"

namespace meshwright::train {
namespace {

using at::Tensor;

// Of a group at a time, so that a piece is still in the cache when its weights are rounded. On a
// device only a cast of the gradients needs memory, and every piece costs launches.
constexpr int64_t kPiece = 1 << 20, kDevicePiece = 1 << 24;

std::optional<at::ScalarType> main_type_of(const Options& table) {
  std::optional<DType> main = table.find_dtype("main_dtype");
  return main ? std::optional(scalar_type(*main)) : std::nullopt;
}

}  // namespace

at::ScalarType Optimizer::weight_type(at::ScalarType values) const {
  return main_type_ ? c10::promoteTypes(*main_type_, values) : values;
}

Tensor Optimizer::weights(const std::vector<FlatParameterGroup>& groups, size_t group) {
  const Tensor& values = groups[group].values;
  if (!has_main(groups[group])) return values;
  if (main_.size() < groups.size()) main_.resize(groups.size());
  if (!main_[group].defined()) main_[group] = values.detach().to(weight_type(values.scalar_type()));
  return main_[group];
}

void Optimizer::round_weights(const std::vector<FlatParameterGroup>& groups) {
  c10::NoGradGuard no_grad;
  for (size_t i = 0; i < groups.size(); ++i)
    if (has_main(groups[i])) groups[i].values.detach().copy_(weights(groups, i));
}

void Optimizer::take_over(const std::vector<FlatParameterGroup>& groups) {
  c10::NoGradGuard no_grad;
  for (size_t i = 0; i < std::min(groups.size(), main_.size()); ++i)
    if (main_[i].defined()) main_[i].copy_(groups[i].values);
}

void Optimizer::catch_up(const std::vector<FlatParameterGroup>& groups) {
  for (size_t i = 0; i < std::min(groups.size(), main_.size()); ++i)
    if (const Tensor& values = groups[i].values;
        main_[i].defined() && !main_[i].to(values.scalar_type()).equal(values))
      main_[i].copy_(values);
}

const Tensor& Optimizer::piece_memory(at::ScalarType type, at::Device device, int64_t count) {
  auto found = std::find_if(pieces_.begin(), pieces_.end(), [&](const Tensor& t) {
    return t.scalar_type() == type && t.device() == device;
  });
  if (found == pieces_.end()) found = pieces_.insert(found, Tensor());
  if (!found->defined() || found->numel() < count)
    *found = at::empty({count}, at::TensorOptions().dtype(type).device(device));
  return *found;
}

void Optimizer::step(const std::vector<FlatParameterGroup>& groups, double lr, double factor) {
  // Kernels write back what they multiply, which must not be a copy.
  const bool copies = std::any_of(groups.begin(), groups.end(), [&](const FlatParameterGroup& g) {
    return weight_type(g.values.scalar_type()) != g.grads.scalar_type();
  });
  if (copies) multiply_gradients(groups, std::exchange(factor, 1));
  factor_ = factor;
  divisor_.reset();
  update_all(groups, lr);
}

const std::optional<Tensor>& Optimizer::divisor(at::Device device) {
  if (factor_ != 1 && !divisor_)
    divisor_ = at::full({}, 1 / factor_, at::TensorOptions().dtype(at::kFloat).device(device));
  return divisor_;
}

void Optimizer::for_each_call(const std::vector<FlatParameterGroup>& groups,
                              const std::vector<std::vector<Tensor>*>& states, const Call& call) {
  if (classes_.empty()) {
    UpdateClass all{1, weight_decay_, {}};
    for (size_t i = 0; i < groups.size(); ++i)
      all.ranges.push_back({i, 0, groups[i].values.numel()});
    update(all, groups, states, call);
  }
  for (const UpdateClass& alike : classes_) update(alike, groups, states, call);
}

void Optimizer::update(const UpdateClass& alike, const std::vector<FlatParameterGroup>& groups,
                       const std::vector<std::vector<Tensor>*>& states, const Call& call) {
  std::vector<Tensor> all_weights, all_gradients;
  std::vector<std::vector<Tensor>> all_states(states.size());
  for (const UpdateRange& range : alike.ranges) {
    const size_t i = range.group;
    auto part = [&](const Tensor& t) {
      return range.count == t.numel() ? t : t.narrow(0, range.begin, range.count);
    };
    const Tensor weights = part(this->weights(groups, i)), gradients = part(groups[i].grads),
                 values = part(groups[i].values);
    const bool main = has_main(groups[i]);
    std::vector<Tensor> own;  // states
    for (const auto* list : states) own.push_back(part(list->at(i)));
    if (!main && weights.scalar_type() == gradients.scalar_type()) {
      all_weights.push_back(weights);
      all_gradients.push_back(gradients);
      for (size_t s = 0; s < own.size(); ++s) all_states[s].push_back(own[s]);
      continue;
    }
    const bool casts = gradients.scalar_type() != weights.scalar_type();
    const int64_t whole = weights.numel(), piece = weights.is_cpu() ? std::min(kPiece, whole)
                                                   : casts          ? std::min(kDevicePiece, whole)
                                                                    : whole;
    for (int64_t at = 0; at < whole; at += piece) {
      int64_t count = std::min(piece, whole - at);
      Tensor gradient = gradients.narrow(0, at, count), weight = weights.narrow(0, at, count);
      if (casts)
        gradient = piece_memory(weight.scalar_type(), weight.device(), piece)
                       .narrow(0, 0, count)
                       .copy_(gradient);
      std::vector<std::vector<Tensor>> state;
      for (const Tensor& whole_state : own) state.push_back({whole_state.narrow(0, at, count)});
      call(alike, {weight}, {gradient}, state, divisor(weight.device()));
      if (main) values.narrow(0, at, count).copy_(weight);
    }
  }
  if (!all_weights.empty())
    call(alike, all_weights, all_gradients, all_states, divisor(all_weights[0].device()));
}

void Optimizer::extend(std::vector<Tensor>& state, const std::vector<FlatParameterGroup>& groups) {
  for (size_t i = state.size(); i < groups.size(); ++i)
    state.push_back(at::zeros_like(weights(groups, i)));
}

namespace {

class AdamW final : public Optimizer {
 public:
  explicit AdamW(const Options& table)
      : Optimizer(main_type_of(table), table.get_number("weight_decay")),
        eps_(table.get_number("eps")) {
    const auto& betas = std::get<std::vector<double>>(table.value("betas"));
    if (betas.size() != 2)
      throw Error(ErrorCode::out_of_range,
                  "AdamW has two betas, found " + std::to_string(betas.size()))
          .key("optimizer.betas")
          .at(table.origin("betas"))
          .help("set optimizer.betas = [0.9, 0.95]");
    beta1_ = betas[0];
    beta2_ = betas[1];
  }

  void update_all(const std::vector<FlatParameterGroup>& groups, double lr) override {
    c10::NoGradGuard no_grad;
    if (steps == 0) catch_up(groups);
    allocate(groups);
    ++steps;
    for_each_call(groups, {&average_, &square_},
                  [&](const UpdateClass& alike, const std::vector<Tensor>& weights,
                      const std::vector<Tensor>& gradients, auto& state,
                      const std::optional<Tensor>& divisor) {
                    // The kernels read the count from a float tensor of the same device.
                    std::vector<Tensor> counts;
                    for (const Tensor& weight : weights)
                      counts.push_back(!counts.empty() && counts[0].device() == weight.device()
                                           ? counts[0]
                                           : at::full({}, static_cast<double>(steps - alike.began),
                                                      weight.options().dtype(at::kFloat)));
                    at::_fused_adamw_(weights, gradients, state[0], state[1], {}, counts,
                                      lr * alike.lr_factor, beta1_, beta2_, alike.weight_decay,
                                      eps_,
                                      /*amsgrad=*/false, /*maximize=*/false, divisor);
                  });
  }
  std::vector<State> state() override { return {{"exp_avg", average_}, {"exp_avg_sq", square_}}; }
  void allocate(const std::vector<FlatParameterGroup>& groups) override {
    extend(average_, groups);
    extend(square_, groups);
  }
  const char* name() const override { return "adamw"; }

 private:
  double eps_, beta1_ = 0.9, beta2_ = 0.95;
  std::vector<Tensor> average_, square_;
};

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const Options& table)
      : Optimizer(main_type_of(table), table.get_number("weight_decay")),
        momentum_(table.get_number("momentum")) {}

  void update_all(const std::vector<FlatParameterGroup>& groups, double lr) override {
    c10::NoGradGuard no_grad;
    bool first = steps++ == 0;
    if (first) catch_up(groups);
    allocate(groups);
    std::vector<std::vector<Tensor>*> states;
    if (momentum_ > 0) states.push_back(&momentum_buffers_);
    for_each_call(groups, states,
                  [&](const UpdateClass& alike, const std::vector<Tensor>& weights,
                      const std::vector<Tensor>& gradients, auto& state,
                      const std::optional<Tensor>& divisor) {
                    at::_fused_sgd_(
                        weights, gradients, state.empty() ? std::vector<Tensor>() : state[0],
                        alike.weight_decay, momentum_, lr * alike.lr_factor,
                        /*dampening=*/0, /*nesterov=*/false, /*maximize=*/false, first, divisor);
                  });
  }
  std::vector<State> state() override {
    return momentum_ > 0 ? std::vector<State>{{"momentum", momentum_buffers_}}
                         : std::vector<State>();
  }
  void allocate(const std::vector<FlatParameterGroup>& groups) override {
    if (momentum_ > 0) extend(momentum_buffers_, groups);
  }
  const char* name() const override { return "sgd"; }

 private:
  double momentum_;
  std::vector<Tensor> momentum_buffers_;
};

}  // namespace

void multiply_gradients(const std::vector<FlatParameterGroup>& groups, double factor) {
  c10::NoGradGuard no_grad;
  if (factor == 1) return;
  std::vector<Tensor> gradients;
  for (const FlatParameterGroup& group : groups) gradients.push_back(group.grads);
  if (!gradients.empty()) at::_foreach_mul_(gradients, factor);
}

std::unique_ptr<Optimizer> make_optimizer(const Options& table) {
  if (table.get_string("name") == "sgd") return std::make_unique<Sgd>(table);
  return std::make_unique<AdamW>(table);
}

}  // namespace meshwright::train
