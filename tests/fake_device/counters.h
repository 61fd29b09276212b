// What each step of the process costs a device, for FAKE_DEVICE_COUNTERS=PATH: a JSON file a
// process. A step ends where the program's next forward pass begins (costs.cpp says when). Whoever
// calls holds the lock of runtime.h.
#pragma once

#include <cstddef>

namespace fake_device {

bool counts_steps();
void count_copy(const char* kind, bool pageable, size_t bytes);
// The host waits: `what` is the call of CUDA's interface.
void count_wait(const char* what);
void count_stream(size_t number);
void write_counters();

}  // namespace fake_device
