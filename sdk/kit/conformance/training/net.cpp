#include "sdk/kit/conformance/training/net.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>

#include "meshwright/nn/loss.h"
#include "meshwright/nn/stage.h"

namespace meshwright::conformance {

using at::Tensor;

namespace {

// What it adds depends on the tokens before, which lie on other ranks where ranks share samples.
// Tensor parallelism cuts its heads; the norms of queries and keys stay whole and see this rank's.
struct AttentionImpl : torch::nn::Module {
  AttentionImpl() {
    auto projection = [&](const char* name) {
      return register_module(name, Linear(torch::nn::LinearOptions(kWidth, kWidth)));
    };
    q = projection("q_proj"), k = projection("k_proj"), v = projection("v_proj");
    q_norm = register_module("q_norm", RMSNorm(kWidth / kHeads, 1e-6));
    k_norm = register_module("k_norm", RMSNorm(kWidth / kHeads, 1e-6));
    o = projection("o_proj");
    core = register_module("core", AttentionCore(AttentionOptions{.scale = 0.5}));
  }
  Tensor forward(const Tensor& x) {
    auto heads = [&](const Tensor& of) {
      return of.view({x.size(0), x.size(1), -1, kWidth / kHeads});
    };
    return o(core(q_norm(heads(q(x))), k_norm(heads(k(x))), heads(v(x))).flatten(2));
  }
  Linear q{nullptr}, k{nullptr}, v{nullptr}, o{nullptr};
  RMSNorm q_norm{nullptr}, k_norm{nullptr};
  AttentionCore core{nullptr};
};
MESHWRIGHT_MODULE(Attention);

// What tensor parallelism cuts.
struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    up = register_module("up_proj", Linear(torch::nn::LinearOptions(kWidth, kInner)));
    down = register_module("down_proj", Linear(torch::nn::LinearOptions(kInner, kWidth)));
  }
  Tensor forward(const Tensor& x) {
    ++runs;
    return down(up(x).tanh());
  }
  Linear up{nullptr}, down{nullptr};
  int64_t runs = 0;
};
MESHWRIGHT_MODULE(Mlp);

struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    norm = register_module("input_layernorm", RMSNorm(kWidth, 1e-6));
    attention = register_module("self_attn", Attention());
    mlp = register_module("mlp", Mlp());
  }
  Tensor forward(const Tensor& x) {
    Tensor h = norm(x);
    return x + attention(h) + mlp(h);
  }
  RMSNorm norm{nullptr};
  Attention attention{nullptr};
  Mlp mlp{nullptr};
};
MESHWRIGHT_MODULE(Layer);

}  // namespace

NetImpl::NetImpl() {
  embed = register_module("embed_tokens", Embedding(kVocabulary, kWidth));
  register_module("layers", layers);
  for (int64_t i = 0; i < kLayers; ++i) layers->push_back(Layer());
  head =
      register_module("lm_head", Linear(torch::nn::LinearOptions(kWidth, kVocabulary).bias(false)));
}

Tensor NetImpl::forward(const Tensor& x) {
  const StagePart part = current_stage();
  Tensor h = part.first ? embed(x) : x;
  for (int64_t i = part.begin; i < part.end_of(kLayers); ++i)
    h = layers[static_cast<size_t>(i)]->as<Layer>()->forward(h);
  return part.last ? head(h) : h;
}

int64_t NetImpl::mlp_runs() const {
  int64_t out = 0;
  for (const auto& layer : *layers)
    if (const auto* mine = layer->as<Layer>()) out += mine->mlp->runs;
  return out;
}

Net make_net() {
  Net net;
  c10::NoGradGuard no_grad;
  uint64_t seed = 1;
  for (const Tensor& p : net->parameters())
    p.copy_(at::randn(p.sizes(), at::detail::createCPUGenerator(seed++)) * 0.3);
  return net;
}

Tensor samples(int64_t step, std::span<const int64_t> rows) {
  std::vector<Tensor> out;
  for (int64_t row : rows)
    out.push_back(at::randint(
        0, kVocabulary, {1, kLength + 1},
        at::detail::createCPUGenerator(static_cast<uint64_t>(step * kRows + row + 1)), at::kLong));
  return at::cat(out);
}

Tensor loss_sum_of(Net& net, const Tensor& ids, const ContextParallel* context) {
  Tensor input = ids.narrow(1, 0, kLength), targets = ids.narrow(1, 1, kLength);
  if (context == nullptr) return cross_entropy_sum(net(input), targets);
  SequenceScope scope = context->scope(kLength, ids.size(0));
  return cross_entropy_sum(net(context->shard(input, 1, 0)), context->shard(targets, 1, -100));
}

Tensor stage_output(Net& net, const Tensor& ids, const Tensor& hidden, bool last) {
  Tensor out = net(hidden.defined() ? hidden : ids.narrow(1, 0, kLength));
  return last ? cross_entropy_sum(out, ids.narrow(1, 1, kLength)) : out;
}

}  // namespace meshwright::conformance
