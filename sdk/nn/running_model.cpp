#include "meshwright/model/running_model.h"

#include <limits>

namespace meshwright {

RunningModel::~RunningModel() = default;

at::Tensor RunningModel::loss_sum(const at::Tensor& output, const at::Tensor& targets,
                                  const VocabularyShard* shard) {
  return cross_entropy_sum(output, targets, shard);
}

bool RunningModel::changes_batches() const { return false; }
void RunningModel::change_batch(MicroBatch& /*batch*/) const {}
int64_t RunningModel::max_positions() const { return std::numeric_limits<int64_t>::max(); }
bool RunningModel::generates() const { return true; }
void* RunningModel::extension(uint32_t /*id*/) { return nullptr; }

namespace {

// The finalizer of splitmix64.
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t counter) {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;
  return mixed(mixed(mixed(seed + kStep) + stream * kStep) + (counter + 1) * kStep);
}

}  // namespace meshwright
