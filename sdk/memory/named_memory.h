// Tells what lies in a buffer to who stands in front of the device's libraries and asks for it
// (tests/fake_device); nobody does otherwise.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

extern "C" __attribute__((weak, visibility("default"))) void fake_device_name(const void* memory,
                                                                              size_t bytes,
                                                                              const char* name);

namespace meshwright::detail {

inline void name_memory(const at::Tensor& tensor, const char* what, const std::string& unit) {
  if (fake_device_name != nullptr && tensor.defined() && tensor.numel() > 0)
    fake_device_name(tensor.const_data_ptr(), tensor.nbytes(),
                     (what + (unit.empty() ? "the root" : unit)).c_str());
}

}  // namespace meshwright::detail
