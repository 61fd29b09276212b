// In what a model beside adapters is stored, as lora.base_dtype says. Pure, for the plan and the
// run alike.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/config.h"
#include "meshwright/outline.h"

namespace meshwright::plan {

// Of adapters, and of what a group trains beside them in one shard, under a model that is stored in
// `model`: float32 at least. Where a model's units hold one dtype each it is the model's.
DType trained_dtype(const ModelOutline& outline, DType model);

class BaseDtype {
 public:
  // Throws Error(not_in_release) for a dtype of its own under a model whose units hold one each.
  BaseDtype(const config::Config& config, const ModelOutline& outline);
  // Of a frozen parameter that would be stored in `now`. By "auto" in what it computes in, where
  // that has fewer bytes: it is cast to that all the same. Throws Error(conflict) where what is
  // kept whole (lora.base_sharding) would have to be cast: no unit does it.
  DType of(DType now) const;

 private:
  const Options& table_;
  std::optional<DType> asked_;
  std::optional<DType> widest_;  // of what units compute in; nullopt: stored as it is
  std::optional<DType> whole_;   // what is kept whole computes in
};

// What losses are multiplied with before backward, so that small gradients do not become zero where
// they are computed or kept in float16, whose smallest number is 6e-8.

struct LossScale {
  double start = 1;      // of the mean loss of a step; a power of two, which rounds nothing
  bool dynamic = false;  // half as much after gradients that overflow, more after none did for long
};

// Of optimizer.loss_scale and dynamic_loss_scale. `float16`: whether any gradient is in it;
// otherwise there is no scale. `targets`: of a step on a rank; chosen by itself, the scale leaves
// the gradients of a target about as large as those of its own loss. Throws Error(out_of_range) for
// what is no power of two.
LossScale loss_scale(const config::Config& config, bool float16, double targets);
std::string loss_scale_notice(const LossScale& scale);

// How each parameter of a model is updated: what [[optimizer.group]] and optimizer.no_decay say.
// Decided once from names and shapes, for the plan and for the run alike.

// Parameters that are updated alike.
struct UpdateRule {
  double lr_factor = 1, weight_decay = 0;
  bool operator==(const UpdateRule&) const = default;
};

struct ParameterGroups {
  std::vector<UpdateRule> rules;          // distinct; one: all parameters are updated alike
  std::map<std::string, size_t> rule_of;  // of each parameter that trains: the index of its rule
  UpdateRule other;                       // of a parameter that the outline does not list
  std::vector<std::string> frozen;        // by a group, in the outline's order
};

// Marks what a group freezes as not trainable; beside adapters what is frozen and what trains get
// the dtypes that they are stored in (parameter_groups.h). What a model freezes by itself stays so.
// `warnings` gets the groups that are of no parameter. Throws Error(conflict) where groups leave
// nothing that trains.
ParameterGroups group_parameters(const config::Config& config, ModelOutline& outline,
                                 std::vector<std::string>& warnings);

}  // namespace meshwright::plan
