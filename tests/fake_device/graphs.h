// CUDA graphs: what is called on a stream that is captured does not run, but is kept, and runs each
// time the graph is launched. Streams that wait for events of a capture belong to it, each a lane
// of the graph, and a launch has a stream for each lane: so the race check sees the order within a
// graph, too. Whoever calls holds the lock of runtime.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

#include "order.h"

namespace fake_device {

// What a graph's operations read and write, for the counters.
struct Costs {
  size_t read = 0, written = 0;
};
// Where this thread's costs go instead of to the step's: to a graph that it captures or launches.
// nullptr: they are the step's.
Costs* costs_of_graph();

// How a call that does something on the stream stands to captures: 0, it does it; kRecords, it
// calls record(); otherwise CUDA's error. What is refused makes a capture invalid.
constexpr int kRecords = -1;
int capture_state(Stream& stream);
// Of a stream that is captured.
void record(Stream& stream, std::function<void(void* stream)> run);
// The call is not allowed on a stream that is captured, or not at all now.
cudaError_t refuse_on(Stream& stream);
// A call that CUDA thinks unsafe while a capture is under way, by the modes of that and this
// thread.
cudaError_t refuse_unsafe();
// One that waits for a device, or asks for it.
cudaError_t refuse_device(int device);
// One that asks for an event or waits for it on the host.
cudaError_t refuse_event(const Event& event);
// False: the stream is not captured, and the event is like any other.
bool record_event(Stream& stream, Event& event);
// The stream shall wait for the event. False: neither belongs to a capture.
bool wait_in_capture(Stream& stream, const Event& event, cudaError_t& result);
// An operation that cannot be recorded runs on a captured stream.
void spoil(Stream& stream, const char* what);

}  // namespace fake_device
