// run.float32_matmul_precision: matrix products of float32 on devices, in float32 or in TF32.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "meshwright/options.h"

namespace meshwright::train {

// Tells LibTorch, for all of the process, what `run` says, where this rank computes on a device; on
// CPUs all stays as it is. `dist` is dist_env. Returns what the user should hear; empty: nothing.
[[nodiscard]] std::string set_float32_products(const Options& run, const Options& dist,
                                               c10::Device device);

}  // namespace meshwright::train
