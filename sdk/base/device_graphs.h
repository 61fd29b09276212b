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

}  // namespace meshwright
