// CUDA graphs for sdk/base/device_graphs.h.
#pragma once

#include <cstdint>

namespace meshwright::cuda {

void offer_device_graphs();
// Memory of a device that graphs have for their launches, but for tensors in it, which LibTorch
// counts. As of the last captures.
int64_t graph_bytes(int device);

}  // namespace meshwright::cuda
