// Which accesses to device memory nothing orders. Every stream has a vector clock, and so has the
// host; every range of device memory knows its last write and the reads since. Whoever calls holds
// the lock of runtime.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fake_device {

// Of each stream, by its number: how many of its operations are known to be over.
using Clock = std::vector<uint64_t>;

struct Capture;  // of a graph (graphs.h)

struct Stream {
  int device = 0;
  size_t number = 0;
  bool legacy = false;  // the device's own
  bool blocks =
      false;  // it and the device's own wait for each other (cudaStreamNonBlocking not set)
  Capture* capture = nullptr;
  size_t lane = 0;  // of the graph
  Clock clock;
  bool stuck = false;  // behind a collective that never ends
  double time = 0;     // microseconds of the host's clock at which all of it is over
};
struct Event {
  Clock clock;
  bool recorded = false, stuck = false;
  double time = 0;
  unsigned long long capture = 0;  // in which it was recorded; 0: none
  size_t mark = 0;                 // of the graph
};

void join(Clock& into, const Clock& from);
uint64_t at(const Clock& clock, size_t stream);

Stream* make_stream(int device);
const std::vector<Stream*>& all_streams();
// The stream behind a handle; for the default one that of a device, or of the current device.
Stream* stream_of(cudaStream_t handle, int device = -1);

// An operation begins on the stream.
void start(Stream& stream);
// It reads or writes these bytes. `what` stays where it is: see keep().
void touch(const Stream& stream, uintptr_t from, size_t bytes, bool write, const char* what);
// What the program keeps there, and what it last said so of: " of the gradients of layers.0", or
// nothing.
void name(uintptr_t from, size_t bytes, const char* what);
std::string name_at(uintptr_t where);
// The memory is given back.
void forget(uintptr_t from, size_t bytes);
// The host has learnt that so much is over.
void learn(const Clock& clock);
bool is_known(const Clock& clock);
const Clock& host_clock();

// A copy of the name that is there for good.
const char* keep(const char* what);
// Whether this was not said before.
bool is_new(const std::string& line);
size_t kinds_of_races();

}  // namespace fake_device
