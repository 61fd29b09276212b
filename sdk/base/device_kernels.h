// Who runs kernels of our own on devices (kernels/kernels.h): the part for NVIDIA devices, once it
// is loaded. Where nobody does, operators compute the same.
#pragma once

#include "meshwright/export.h"

namespace meshwright {

struct DeviceKernels {
  // Whether the kernels of `type` ("bfloat16_packs") can run on the device. The first call compiles
  // them; why they cannot is told once.
  bool (*ready)(int device, const char* type);
  // Blocks of kernels::kBlock threads on the current stream of the device, after ready().
  // `arguments` are those of kernels/arguments.h, and are read before it returns.
  void (*launch)(int device, const char* kernel, const char* type, unsigned blocks,
                 unsigned shared_bytes, const void* arguments);
};
// nullptr: there are none. What is set stays for good.
MESHWRIGHT_API void set_device_kernels(const DeviceKernels* kernels);
MESHWRIGHT_API const DeviceKernels* device_kernels();

}  // namespace meshwright
