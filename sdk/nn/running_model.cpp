#include "meshwright/model/running_model.h"
#include "sdk/base/files/hash.h"

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <limits>

namespace meshwright {

RunningModel::~RunningModel() = default;

at::Tensor RunningModel::loss_sum(const at::Tensor& output, const at::Tensor& targets,
                                  const at::Tensor& weights, const VocabularyShard* shard) {
  return cross_entropy_sum(output, targets, shard, -100, weights);
}

bool RunningModel::changes_batches() const { return false; }
void RunningModel::change_batch(HostBatch& /*batch*/) const {}
int64_t RunningModel::max_positions() const { return std::numeric_limits<int64_t>::max(); }
bool RunningModel::generates() const { return true; }
void* RunningModel::extension(uint32_t /*id*/) { return nullptr; }

namespace {

// LibTorch has no way to put one Parameter under a second, existing name.
struct RegisteredParameters : torch::nn::Module {
  static constexpr auto member = &RegisteredParameters::parameters_;
};

}  // namespace

void tie_weight(torch::nn::Module& module, const at::Tensor& weight) {
  if (auto* linear = module.as<torch::nn::LinearImpl>()) linear->weight = weight;
  if (auto* embedding = module.as<torch::nn::EmbeddingImpl>()) embedding->weight = weight;
  (module.*RegisteredParameters::member)["weight"] = weight;
}

uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t counter) {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;
  return base::mix64(base::mix64(base::mix64(seed + kStep) + stream * kStep) +
                     (counter + 1) * kStep);
}

}  // namespace meshwright
