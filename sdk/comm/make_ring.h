// Shared memory that several ranks open together, or none of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "meshwright/export.h"
#include "shared_memory_ring.h"

namespace meshwright::detail {

// MESHWRIGHT_SHARED_MEMORY is not 0.
bool wants_shared_memory();

// Collective over `ranks` ranks, this one being `rank` of them. A ring that all have opened, or
// nothing. The first makes the memory, which has no name, and hands it to the others; who cannot
// come to it is on another host. `sum` adds a tensor up over them.
MESHWRIGHT_API std::unique_ptr<SharedMemoryRing> make_ring(
    int64_t rank, int64_t ranks, const SharedMemoryRing::Sizes& sizes,
    const std::function<void(const at::Tensor&)>& sum);

}  // namespace meshwright::detail
