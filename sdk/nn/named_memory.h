// Says what lies in a buffer: to whoever asks what holds memory when it ends
// (sdk/base/held_memory.h), and to what stands in front of the device's libraries
// (tests/fake_device).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace meshwright::detail {

// `what` is a literal. The name lasts as long as the tensor's memory, or until another tensor of
// the unit has it. unit empty: the root.
void name_memory(const at::Tensor& tensor, const char* what, const std::string& unit);
// The same for what stands in front of the device's libraries alone: of many tensors of one name,
// of which the others ask for the last.
void name_for_checks(const at::Tensor& tensor, const char* what, const std::string& unit);

}  // namespace meshwright::detail
