#include "engine/train/step/routers.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "meshwright/error.h"

namespace meshwright {

double ExpertLoad::imbalance() const {
  int64_t sum = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  if (sum == 0) return 1;
  return static_cast<double>(*std::max_element(tokens.begin(), tokens.end())) *
         static_cast<double>(tokens.size()) / static_cast<double>(sum);
}

namespace train {

Routers::Routers(torch::nn::Module& model, bool route_again, bool in_turns) {
  for (auto& [name, block] : find_moe_blocks(model)) {
    const MoeConfig& config = block->config();
    blocks_.push_back({name, block, config.n_routed_experts, config.n_activated_experts});
    block->gate()->route_again = route_again;
    block->gate()->in_turns = in_turns;
    const std::shared_ptr<LoadBalance>& balance = block->gate()->load_balance;
    if (balance && std::find(balances_.begin(), balances_.end(), balance) == balances_.end())
      balances_.push_back(balance);
  }
}

void Routers::refuse_balance_over_stages() const {
  for (const auto& balance : balances_)
    if (balance->form() == LoadBalance::Form::whole_model)
      throw Error(ErrorCode::not_in_release,
                  "the auxiliary loss of this model is one of all its routers together, which the "
                  "stages of a pipeline do not yet add up")
          .key("distributed.pp_size")
          .help(
              "set \"router_aux_loss_coef\": 0 or \"output_router_logits\": false in the model's "
              "config.json")
          .help("set distributed.pp_size = 1");
}

void Routers::forget_others(torch::nn::Module& model) {
  const auto left = find_moe_blocks(model);
  std::erase_if(balances_, [&](const auto& balance) {
    return std::none_of(left.begin(), left.end(), [&](const auto& item) {
      return item.second->gate()->load_balance == balance;
    });
  });
  for (Block& block : blocks_)
    if (std::none_of(left.begin(), left.end(),
                     [&](const auto& item) { return item.first == block.name; }))
      block.module = nullptr;
}

void Routers::begin_step() {
  told_.reset();  // of an evaluation, say
  for (Block& block : blocks_)
    if (block.module != nullptr) block.module->gate()->reset_load();
}

void Routers::before_backward(const Weight& weight, double assumed) {
  if (balances_.empty()) return;
  double count = weight.mine;
  if (context_ && weight.all) {
    count = *weight.all;
  } else if (context_) {
    const auto block = std::find_if(blocks_.begin(), blocks_.end(),
                                    [](const Block& b) { return b.module != nullptr; });
    const at::Device device = block->module->gate()->parameters().front().device();
    at::Tensor sum = at::full({1}, count, at::TensorOptions().dtype(at::kDouble).device(device));
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

at::Tensor Routers::load() const {
  at::TensorOptions options = at::TensorOptions().dtype(at::kLong);
  for (const Block& block : blocks_)
    if (block.module != nullptr) options = block.module->gate()->load().options();
  std::vector<at::Tensor> out;
  for (const Block& block : blocks_)
    out.push_back(block.module != nullptr ? block.module->gate()->load()
                                          : at::zeros({block.experts}, options));
  return out.empty() ? at::Tensor() : at::cat(out);
}

std::vector<ExpertLoad> Routers::read_load(const double* sums) const {
  std::vector<ExpertLoad> out;
  for (const Block& block : blocks_) {
    out.push_back({block.name, std::vector<int64_t>(sums, sums + block.experts), block.active});
    sums += block.experts;
  }
  return out;
}

void Routers::update_biases(const std::vector<ExpertLoad>& load, const at::Tensor& sums) {
  int64_t begin = 0;
  for (size_t i = 0; i < blocks_.size(); begin += blocks_[i++].experts) {
    if (blocks_[i].module == nullptr) continue;
    Router& gate = blocks_[i].module->gate();
    int64_t tokens = std::accumulate(load[i].tokens.begin(), load[i].tokens.end(), int64_t{0});
    if (gate->updates_bias() && gate->weight.requires_grad() && tokens > 0)
      gate->update_bias(sums.narrow(0, begin, blocks_[i].experts));
  }
}

}  // namespace train
}  // namespace meshwright
