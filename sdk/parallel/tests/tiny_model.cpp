#include "tiny_model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>

#include <algorithm>
#include <cstddef>
#include <set>

namespace tiny {

using at::Tensor;
using torch::nn::LinearOptions;

MlpImpl::MlpImpl(int64_t width, int64_t inner) {
  up = register_module("up", meshwright::Linear(LinearOptions(width, inner)));
  down = register_module("down", meshwright::Linear(LinearOptions(inner, width).bias(false)));
}
Tensor MlpImpl::forward(const Tensor& x) { return down(at::silu(up(x))); }

BlockImpl::BlockImpl(int64_t width, int64_t inner, double drop) : dropout(drop) {
  input_layernorm = register_module("input_layernorm", meshwright::RMSNorm(width, 1e-6));
  self_attn = register_module("self_attn", meshwright::Linear(LinearOptions(width, width)));
  post_attention_layernorm =
      register_module("post_attention_layernorm", meshwright::RMSNorm(width, 1e-6));
  mlp = register_module("mlp", Mlp(width, inner));
}
Tensor BlockImpl::forward(const Tensor& x, const Tensor& scale) {
  Tensor y = x + at::dropout(self_attn(input_layernorm(x)) * scale, dropout, is_training());
  return y + mlp(post_attention_layernorm(y));
}

NetImpl::NetImpl(int64_t count, int64_t width, int64_t vocab, double dropout, bool tied) {
  embed = register_module("embed", meshwright::Embedding(vocab, width));
  layers = register_module("layers", torch::nn::ModuleList());
  for (int64_t i = 0; i < count; ++i) layers->push_back(Block(width, 3 * width + 1, dropout));
  norm = register_module("norm", meshwright::RMSNorm(width, 1e-6));
  if (!tied)
    head = register_module("head", meshwright::Linear(LinearOptions(width, vocab).bias(false)));
  bias_of_one = register_parameter("bias_of_one", at::ones({1}));
}
Tensor NetImpl::forward(const Tensor& ids) {
  Tensor x = embed(ids), scale = at::ones({}).to(x.scalar_type());
  for (auto& layer : *layers) x = layer->as<Block>()->forward(x, scale);
  x = norm(x);
  return (head.is_empty() ? at::linear(x, embed->weight) : head(x)) * bias_of_one;
}

Net make(int64_t layers, uint64_t seed, double dropout, bool tied) {
  Net net(layers, 10, 13, dropout, tied);
  at::Generator generator = at::detail::createCPUGenerator(seed);
  c10::NoGradGuard no_grad;
  std::set<void*> seen;
  for (auto& item : net->named_parameters())
    if (!item.key().ends_with("norm.weight") && item.key() != "bias_of_one" &&
        seen.insert(item.value().unsafeGetTensorImpl()).second)
      item.value().copy_(at::randn(item.value().sizes(), generator) * 0.3);
  return net;
}

Tensor batch(int64_t rows, uint64_t seed) {
  return at::randint(0, 13, {rows, 7}, at::detail::createCPUGenerator(seed), at::kLong);
}

Tensor loss_of(Net& net, const Tensor& ids) {
  Tensor logits = net(ids.narrow(1, 0, 6));
  return at::cross_entropy_loss(logits.to(at::kFloat).flatten(0, 1), ids.narrow(1, 1, 6).flatten());
}

std::vector<meshwright::PlannedUnit> parted_units(const meshwright::ModelOutline& outline,
                                                  std::optional<bool> reshard) {
  auto trains = [&](size_t p) { return outline.parameters[p].trainable; };
  std::vector<meshwright::PlannedUnit> out;
  for (meshwright::PlannedUnit& unit : meshwright::plan_units(outline, reshard)) {
    const auto all = static_cast<std::ptrdiff_t>(unit.parameters.size());
    const auto trained = std::count_if(unit.parameters.begin(), unit.parameters.end(), trains);
    if (!unit.root && trained > 0 && trained < all) {
      meshwright::PlannedUnit& part = out.emplace_back(unit);
      part.name += ".adapters";
      part.reshard_after_forward = false;
      part.once_a_step = true;
      std::erase_if(part.parameters, [&](size_t p) { return !trains(p); });
      std::erase_if(unit.parameters, trains);
    }
    out.push_back(unit);
  }
  return out;
}

meshwright::ShardGroups groups_of(const std::shared_ptr<meshwright::World>& world,
                                  int64_t replicas) {
  meshwright::DeviceMesh groups(
      meshwright::Mesh({{"dp_replicate", replicas}, {"dp_shard", world->size() / replicas}}),
      world);
  meshwright::ShardGroups out;
  out.shard = groups.group("dp_shard");
  out.replicate = groups.group("dp_replicate");
  out.shard_axis = "dp_shard";
  out.replicate_axis = "dp_replicate";
  return out;
}

}  // namespace tiny
