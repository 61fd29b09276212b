// Compiles kernels of our own (sdk/base/kernels) at run time, and runs them.
#pragma once

namespace meshwright::cuda {

// From now on the SDK uses them.
void offer_own_kernels();

}  // namespace meshwright::cuda
