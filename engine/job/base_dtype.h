// In what a model beside adapters is stored, as lora.base_dtype says. Pure, for the plan and the
// run alike.
#pragma once

#include <optional>

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

}  // namespace meshwright::plan
