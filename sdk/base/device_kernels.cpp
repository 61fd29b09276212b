#include "device_kernels.h"

#include <atomic>

namespace meshwright {

namespace {

std::atomic<const DeviceKernels*> kernels_of_process{nullptr};

}  // namespace

void set_device_kernels(const DeviceKernels* kernels) { kernels_of_process = kernels; }
const DeviceKernels* device_kernels() { return kernels_of_process; }

}  // namespace meshwright
