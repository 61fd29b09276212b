// Who captures work of a device and launches it again as one (CUDA graphs): the part for NVIDIA
// devices, once it is loaded.
#pragma once

#include <functional>
#include <memory>

#include "meshwright/export.h"

namespace meshwright {

class MESHWRIGHT_API DeviceGraph {
 public:
  virtual ~DeviceGraph();
  // Once: calls `work`, which runs nothing on the device. Its tensors have memory of the graph's
  // own, which the graph needs for as long as it is launched. Throws what `work` throws, and
  // c10::Error where it does what a graph cannot hold: waits for the device, say.
  virtual void capture(const std::function<void()>& work) = 0;
  // On the current stream: the same work on the same addresses.
  virtual void launch() = 0;
};

struct DeviceGraphs {
  // Not null. `beside`: another one, after which it is launched, to share its memory; or nullptr.
  std::unique_ptr<DeviceGraph> (*make)(int device, const DeviceGraph* beside);
};
// nullptr: there are none. What is set stays for good.
MESHWRIGHT_API void set_device_graphs(const DeviceGraphs* graphs);
MESHWRIGHT_API const DeviceGraphs* device_graphs();

// Who runs kernels of our own on devices (kernels/kernels.h): the part for NVIDIA devices, once it
// is loaded. Where nobody does, operators compute the same.

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
