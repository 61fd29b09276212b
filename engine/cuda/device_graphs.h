// CUDA graphs for sdk/base/device_graphs.h.
#pragma once

namespace meshwright::cuda {

void offer_device_graphs();

}  // namespace meshwright::cuda
