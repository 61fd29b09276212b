// What the host knows of documents whose ids lie on a device, so that attention, which asks where
// they begin, need not wait for the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "meshwright/export.h"

namespace meshwright::detail {

// `documents` [rows, length], int32 and dense, has the ids that `host` has, as long as nobody
// writes to it. Thread-safe, and good for all threads; forgotten with the tensor's memory.
MESHWRIGHT_API void know_documents(const at::Tensor& documents, const int32_t* host);

}  // namespace meshwright::detail
