#include "engine/trainer/routers.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <numeric>

namespace meshwright {

double ExpertLoad::imbalance() const {
  int64_t sum = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  if (sum == 0) return 1;
  return static_cast<double>(*std::max_element(tokens.begin(), tokens.end())) *
         static_cast<double>(tokens.size()) / static_cast<double>(sum);
}

namespace train {

Routers::Routers(torch::nn::Module& model, bool route_again, bool in_turns,
                 std::shared_ptr<Group> context)
    : blocks_(find_moe_blocks(model)), context_(std::move(context)) {
  for (auto& [name, block] : blocks_) {
    block->gate()->route_again = route_again;
    block->gate()->in_turns = in_turns;
    const std::shared_ptr<LoadBalance>& balance = block->gate()->load_balance;
    if (balance && std::find(balances_.begin(), balances_.end(), balance) == balances_.end())
      balances_.push_back(balance);
  }
}

void Routers::begin_step() {
  for (auto& [name, block] : blocks_) block->gate()->reset_load();
}

void Routers::before_backward(double count, double assumed) {
  if (balances_.empty()) return;
  if (context_) {
    const at::Device device = blocks_.front().second->gate()->parameters().front().device();
    at::Tensor sum = at::tensor({count}, at::kDouble).to(device);
    context_->all_reduce(sum, ReduceOp::sum, /*control=*/true).wait();
    count = sum.item<double>();
  }
  for (const auto& balance : balances_) balance->set_scale(count / assumed);
}

at::Tensor Routers::reported_loss() const {
  at::Tensor out;
  for (const auto& balance : balances_) {
    if (balance->form() != LoadBalance::Form::whole_model) continue;
    at::Tensor value = balance->value();
    if (value.defined()) out = out.defined() ? out + value : value;
  }
  return out;
}

std::vector<double> Routers::load() const {
  std::vector<double> out;
  for (const auto& [name, block] : blocks_) {
    at::Tensor load = block->gate()->load().cpu();
    const int64_t* tokens = load.const_data_ptr<int64_t>();
    out.insert(out.end(), tokens, tokens + load.numel());
  }
  return out;
}

std::vector<ExpertLoad> Routers::read_load(const double* sums) const {
  std::vector<ExpertLoad> out;
  for (const auto& [name, block] : blocks_) {
    int64_t experts = block->config().n_routed_experts;
    out.push_back(
        {name, std::vector<int64_t>(sums, sums + experts), block->config().n_activated_experts});
    sums += experts;
  }
  return out;
}

void Routers::update_biases(const std::vector<ExpertLoad>& load) {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    Router& gate = blocks_[i].second->gate();
    int64_t tokens = std::accumulate(load[i].tokens.begin(), load[i].tokens.end(), int64_t{0});
    if (gate->updates_bias() && gate->weight.requires_grad() && tokens > 0)
      gate->update_bias(at::tensor(load[i].tokens));
  }
}

}  // namespace train
}  // namespace meshwright
