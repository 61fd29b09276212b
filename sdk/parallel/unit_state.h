// What the parts of one sharded unit share: its layout, its parameters, its groups and dtypes, and
// what all units of a model have in common.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "meshwright/parallel/scalar_type.h"
#include "meshwright/parallel/sharded_units.h"
#include "sdk/nn/buffers.h"
#include "sdk/planning/unit_layout.h"

namespace meshwright::detail {

class GradientReducer;
class UnshardedParameters;

// A gradient that holds values that are no numbers of their own.
struct Nonfinite {
  std::string parameter;  // empty: none
  bool infinite = false;  // false: NaN
  static Nonfinite in(const std::string& parameter, const at::Tensor& gradient);
};

// What all units of a model share.
struct UnitContext {
  ShardingPolicy policy;
  ShardGroups groups;
  std::shared_ptr<World> world;
  std::shared_ptr<BufferPool> pool;
  HostCopies to_host;                   // of gradients; waited for at the end of the step
  bool synchronise = true;              // this micro-batch reduces
  bool told = false;                    // units reduce in this step when they are told to
  GradientReducer* reducing = nullptr;  // whose reduction is under way
  std::vector<GradientReducer*> turns;  // all of them, in one order on all ranks: as gradients are
                                        // expected, those of the last parameters first
  size_t turn = 0;                      // whole gradients: the next one to reduce
  std::vector<UnshardedParameters*> mapped;  // units with a slot of the shared memory for gathers
  int64_t ahead = 2;                         // gathers that are under way at once, at most
  bool lasting = false;  // what is gathered now stays for long, and may be written to
  // Some unit stores what is frozen in another dtype than what trains: then no frozen parameter has
  // main weights.
  bool frozen_apart = false;
  int64_t gathers = 0;
  Nonfinite own_nonfinite;  // the first one of this step among this rank's own gradients, where
                            // that is looked for
  int64_t averaged() const {
    return groups.shard->size() * (groups.replicate ? groups.replicate->size() : 1);
  }
};

struct UnitState {
  struct Parameter {
    std::string name;
    at::Tensor variable;  // the module's own
    std::vector<int64_t> sizes;
    int64_t count = 0;   // elements
    int64_t offset = 0;  // in the gathered buffer
    bool trainable = true;
    LentStorage storage;
    at::Tensor accumulated_grad;  // of earlier micro-batches, in the reduce dtype
    bool has_grad = false;        // whole gradients: this step's sum has something of it
    bool placed = false;          // its gradient has been written where the unit keeps it already
    bool arrived = false;         // a gradient came in this backward of the unit
  };

  UnitState(UnitContext& shared, const UnitSpec& spec);
  UnitState(const UnitState&) = delete;
  UnitState& operator=(const UnitState&) = delete;

  int64_t shards() const { return sharding.shard->size(); }
  int64_t me() const { return sharding.shard->rank(); }
  Group& group() const { return *sharding.shard; }
  bool replicated() const { return replicate && replicate->size() > 1; }
  // Parameters stay whole between steps; gradients are summed whole before the step's one
  // reduction.
  bool keeps_unsharded() const { return context.policy.keeps_parameters(); }
  bool accumulates_unsharded() const { return context.policy.keeps_gradients(); }
  bool reshards() const { return reshard && !held; }
  at::Device device() const { return context.world->device(); }
  // What a gather sends: the shard, or its copy in the parameters' dtype.
  const at::Tensor& sent() const { return model_shard.defined() ? model_shard : shard; }
  // The same where the frozen part has a shard of its own.
  at::Tensor sent(const ShardSlice& slice) const;
  // All of it one after the other, cast to what it is sent in.
  void bring_sent(const at::Tensor& to) const;
  // Elements of the shard that the optimizer updates a part of, the whole of it or what trains.
  int64_t shard_elements() const {
    return frozen_beside ? layout.trainable_size() : layout.shard_size();
  }
  int64_t frozen_elements() const { return layout.shard_size() - shard_elements(); }

  UnitContext& context;
  std::string name;
  bool reshard;       // after forward
  bool held = false;  // until told otherwise: neither after forward nor after backward
  bool own_groups;    // cut over groups of its own (experts), which have no replicas
  UnitSharding sharding;
  std::shared_ptr<Group> replicate;
  MixedPrecision mp;
  at::ScalarType storage = at::kFloat, param, reduce,
                 output;                       // of parameters, computation, reduction, outputs
  at::ScalarType frozen_storage = at::kFloat;  // of parameters that do not train
  at::ScalarType main = at::kFloat,
                 gradient_type =
                     at::kFloat;  // of the shard, which the optimizer updates, and of its gradient
  UnitLayout layout;
  std::vector<Parameter> parameters;            // in the order of the layout
  std::vector<std::vector<ShardSlice>> slices;  // by rank
  // Each parameter is the ranks' parts one after the other, and one call brings all of them.
  bool joins_parts = false;
  int64_t trainable_count = 0;
  // What is frozen lies in a shard of its own, in another dtype. Else in one with the rest.
  bool frozen_beside = false;
  at::Tensor shard, frozen, gradient;
  // On a device: away from the beginning of a step to the gradient's first reduction in it.
  ReturnableMemory gradient_memory;
  at::Tensor model_shard;  // the shard in the parameters' dtype, where main weights are wider

 private:
  bool parts_follow() const;
};

}  // namespace meshwright::detail
