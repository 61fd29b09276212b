#pragma once

#include <string>

#include "meshwright/error.h"

namespace meshwright {

// A plan that the model's modules contradict.
inline Error tp_plan_does_not_fit(const std::string& message) {
  return Error(ErrorCode::tp_plan_does_not_fit, message).key("distributed.tp_plan");
}

}  // namespace meshwright
