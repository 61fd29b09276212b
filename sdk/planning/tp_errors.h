// What tensor-parallel plans are refused for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "meshwright/error.h"
#include "meshwright/tp_plan.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright {

// A plan that the model's modules contradict.
inline Error tp_plan_does_not_fit(const std::string& message) {
  return Error(ErrorCode::tp_plan_does_not_fit, message).key("distributed.tp_plan");
}

// Head counts against tp, with the sizes that would work as help.
MESHWRIGHT_API void check_heads(const ModelOutline& outline, int64_t tp_size);
// What the experts of a model allow of a plan.
void check_moe_tp_plan(const ModelOutline& outline, const TpPlanRequest& request,
                       const TpPlanEntries& entries);

}  // namespace meshwright
