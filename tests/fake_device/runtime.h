// What the sources of the runtime share: its lock, its settings, its log and what it counts.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <mutex>

#include "device.h"
#include "order.h"

namespace fake_device {

constexpr int kMostDevices = 16;
constexpr size_t kDeviceBytes = size_t{16} << 30;

// From the environment, FAKE_DEVICE_<NAME>; README.md says what they are for.
struct Settings {
  int count = 8;                 // of those that are visible
  int number[kMostDevices]{};    // by index: which of all it is
  size_t memory = kDeviceBytes;  // of a device
  int instances = 1;             // that one GPU is cut into (MIG)
  int capability = 90;           // 9.0
  int microseconds = 0;          // that an operation takes
  bool arithmetic = true;
  bool verbose = false, races = true, poison = true, stacks = true, summary = false;
  bool ignore_waits = false, ignore_syncs = false;
};
const Settings& settings();

// One for everything. An operation may allocate, so one thread may take it more than once.
std::recursive_mutex& mutex();
struct Lock : std::lock_guard<std::recursive_mutex> {
  Lock() : std::lock_guard<std::recursive_mutex>(mutex()) {}
};

struct Counts {
  long operations = 0, copies = 0, kernels = 0, races = 0;
};
Counts& counts();

// Of the host's clock, or later, where the stream has something to do until then.
double time_on(const Stream& stream);

FILE* log_file();
void log_stack();
// On the first call: the operators are loaded, faults are told, and the log gets a summary at exit.
void set_up();

int current_device();
cudaError_t fail(cudaError_t error);  // remembers it for cudaGetLastError()

// A thread that never began an operation only looks on (a watchdog): what it asks teaches nobody.
bool has_launched();
// Waits while something that never ends is before it.
bool is_hung();
void wait_while_stuck(const bool& stuck);
void wait_for_device();  // the current one

// Device memory, and pinned memory of the host (memory.cpp).
bool is_device(const void* p);
bool is_allocated(const void* p);
bool is_pinned(const void* p);
char* view_at(uintptr_t address);  // of either
// A copy from or to pinned memory has begun: the host must not write, or not touch, its pages.
void take_off(const void* pinned, const Stream& stream, bool written, const char* what);
// Those that the host knows to be over give their pages back.
void land();
// Whether the fault is one of the host touching such pages; if so it is told, and the pages are
// given back.
bool tell_pinned(void* address, bool wrote);

}  // namespace fake_device
