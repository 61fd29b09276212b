// Kernels of the program's own (sdk/base/kernels), which it compiles at run time: here they are
// compiled for the host, from the same text.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace fake_device {

const void* own_kernel(const char* name);  // nullptr: there is none
bool is_own_kernel(const void* kernel);
// Runs it on the host's view of its memory, after the race check has heard what it reads and
// writes. False: a pointer of the arguments is not what the kernel takes.
bool run_own_kernel(const void* kernel, long long blocks, size_t shared_bytes,
                    const void* arguments, cudaStream_t stream);

}  // namespace fake_device
