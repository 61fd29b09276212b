// A small decoder-like model whose sizes divide by nothing, for tests of the building blocks.
#pragma once

#include <torch/nn/modules/container/modulelist.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "meshwright/nn/layers.h"
#include "meshwright/parallel/sharded_units.h"

namespace tiny {

struct MlpImpl : torch::nn::Module {
  MlpImpl(int64_t width, int64_t inner);
  at::Tensor forward(const at::Tensor& x);
  meshwright::Linear up{nullptr}, down{nullptr};
};
MESHWRIGHT_MODULE(Mlp);

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t width, int64_t inner, double dropout);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& scale);
  meshwright::RMSNorm input_layernorm{nullptr}, post_attention_layernorm{nullptr};
  meshwright::Linear self_attn{nullptr};
  Mlp mlp{nullptr};
  double dropout;
};
MESHWRIGHT_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl(int64_t layers, int64_t width = 10, int64_t vocab = 13, double dropout = 0,
          bool tied = false);
  at::Tensor forward(const at::Tensor& ids);
  meshwright::Embedding embed{nullptr};
  torch::nn::ModuleList layers;
  meshwright::RMSNorm norm{nullptr};
  meshwright::Linear head{nullptr};
  at::Tensor bias_of_one;  // one row: most ranks hold nothing of it
};
MESHWRIGHT_MODULE(Net);

// Seeded weights.
Net make(int64_t layers, uint64_t seed, double dropout = 0, bool tied = false);
// [rows, length] token ids of one sample stream.
at::Tensor batch(int64_t rows, uint64_t seed);
at::Tensor loss_of(Net& net, const at::Tensor& ids);

// The units of a model, those of its layers that train in part cut in two: what trains, gathered
// once a step, and the rest.
std::vector<meshwright::PlannedUnit> parted_units(const meshwright::ModelOutline& outline,
                                                  std::optional<bool> reshard = {});

// All ranks as `replicas` copies of shards.
meshwright::ShardGroups groups_of(const std::shared_ptr<meshwright::World>& world,
                                  int64_t replicas = 1);

}  // namespace tiny
