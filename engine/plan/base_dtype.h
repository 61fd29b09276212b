// In what a model beside adapters is stored, as lora.base_dtype says. Pure, for the plan and the
// run alike.
#pragma once

#include <optional>

#include "engine/config/config.h"
#include "meshwright/outline.h"

namespace meshwright::plan {

class BaseDtype {
 public:
  // Throws Error(not_in_release) for a dtype of its own under a model whose units hold one each.
  BaseDtype(const config::Config& config, const ModelOutline& outline);
  // Of a frozen parameter that would be stored in `now`. By "auto" in what it computes in, where
  // that has fewer bytes: it is cast to that all the same.
  DType of(DType now) const;

 private:
  std::optional<DType> asked_;
  DType computes_ = DType::float64;
};

}  // namespace meshwright::plan
