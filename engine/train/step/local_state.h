// What this rank holds of a model and its optimizer, and which of it this rank writes: regions of
// whole tensors, whatever the strategy.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/meta.h"
#include "engine/train/step/optimizer.h"
#include "meshwright/parallel/parallel.h"
#include "meshwright/parallel/scalar_type.h"
#include "meshwright/trainer.h"

namespace torch::nn {
class Module;
}

namespace meshwright::train {

inline DType dtype_of(const at::Tensor& tensor) {
  return meshwright::dtype_of(tensor.scalar_type());
}
Region region_of(const ParallelParameter& parameter);
// The name that files have for a parameter of a rank's stages.
std::string stored_name(const ModelOutline& stages, const std::string& parameter);

// A parameter's elements in what the optimizer updates: its main weights where it keeps some, else
// the parameter's own memory.
at::Tensor updated_part(const ParallelParameter& parameter, const UpdatePlace& place,
                        const ParallelModel& model, Optimizer& optimizer);

// A tensor's part on this rank. `local` shares memory with what trains.
struct LocalTensor {
  std::string state, name;  // as in checkpoint::TensorRecord
  DType dtype = DType::float32;
  std::vector<int64_t> shape;
  Region region = Region::run(0, 0);
  at::Tensor local;  // contiguous; undefined when this rank has nothing of it
  // Weights: the dtype that the model is stored in, which is narrower than that of main weights.
  DType stored = dtype;
  bool frozen = false;  // a weight, or a state, of a parameter that does not train
  std::optional<StateReplica> replica = {};  // of a strategy's own
};
// Weights, the optimizer's states, and the module's buffers (state "buffer"), of this rank's stages
// where the model is cut into some. Weights are what the optimizer updates: its main weights where
// it keeps some, from which the model's own are made by rounding; then the strategy's own
// (ParallelModel::state_tensors()). A copy of another stage's weight goes by that one's name.
// Where replicas go their own ways (ParallelModel::independent_axis()), those of all but the first
// have its number behind their states: "@1" are weights of replica 1, "exp_avg@1" a state of it.
std::vector<LocalTensor> local_state(Trainer& trainer);
// A strategy's own that each replica has for itself (StateTensor::replica) are named alike.
inline std::string of_replica(const std::string& state, int64_t replica) {
  return replica == 0 ? state : state + "@" + std::to_string(replica);
}
// "exp_avg" of "exp_avg@1".
inline std::string kind_of(const std::string& state) { return state.substr(0, state.find('@')); }
// That number, as "@1"; "": the first replica, or all are equal.
std::string own_suffix(const Trainer& trainer);

// Ranks (ascending) that hold the same regions of these tensors; of parameters and states, since
// buffers may differ.
struct Replicas {
  std::vector<int64_t> ranks;
  std::vector<size_t> tensors;
};

// Who writes what, when several ranks hold the same: each its share, so that everything is written
// once. Found out by comparing the regions of all ranks, so it serves any strategy. Tensors count
// in an order that is the same on every rank, also where ranks have other tensors each.
class Shares {
 public:
  // Collective. `tensors`: of this rank. Throws Error(internal) when the ranks' parts of a tensor
  // do not make up the whole.
  Shares(World& world, const std::vector<LocalTensor>& tensors);
  // This rank's tensors, listed like those that it was made from, in the common order; what only
  // other ranks have has no region and no values.
  std::vector<LocalTensor> in_order(const std::vector<LocalTensor>& tensors) const;
  // What `rank` writes of tensor i; nullptr: nothing.
  const Region* share(size_t tensor, int64_t rank) const;
  // What more than one rank holds; the same on every rank.
  const std::vector<Replicas>& replicas() const { return replicas_; }

 private:
  std::vector<LocalTensor> all_;  // of all ranks, without values
  std::vector<size_t> mine_;      // of this rank's tensors, in all_
  std::vector<std::vector<std::pair<int64_t, Region>>>
      shares_;  // by tensor: (rank, region), ranks ascending
  std::vector<Replicas> replicas_;
};

}  // namespace meshwright::train
