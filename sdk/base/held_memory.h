// Buffers that have names: what lies in them, and of which unit. For who asks what holds memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "meshwright/export.h"

namespace meshwright::detail {

struct HeldMemory {
  std::string what, unit;  // "gathered parameters of ", "layers.3"; unit empty: the root
  const void* begin = nullptr;
  int64_t bytes = 0;
  bool on_host = true;
};

// Those of this process that are there now. Thread-safe.
MESHWRIGHT_API std::vector<HeldMemory> held_memory();

}  // namespace meshwright::detail
