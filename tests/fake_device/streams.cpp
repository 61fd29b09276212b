// Streams, events and copies. Everything happens at once, on the thread that calls; only its place
// in the order is kept.
#include <algorithm>
#include <cstring>

#include "counters.h"
#include "delays.h"
#include "graphs.h"
#include "runtime.h"
#include "waits.h"

using namespace fake_device;

namespace {

Event* event_of(cudaEvent_t handle) { return reinterpret_cast<Event*>(handle); }

const char* direction(const void* to, const void* from) {
  if (is_device(to)) return is_device(from) ? "copy on the device" : "copy to the device";
  return is_device(from) ? "copy to the host" : "copy on the host";
}

bool is_unpageable(const void* p) { return is_device(p) || is_pinned(p); }

cudaError_t copy_now(void* to, const void* from, size_t bytes, cudaStream_t handle,
                     bool returns_early, const char* what) {
  if (!is_device(to)) wait_while_stuck(stream_of(handle)->stuck);
  Lock lock;
  ++counts().copies;
  count_copy(what, !is_unpageable(to) || !is_unpageable(from), bytes);
  if (!returns_early) count_wait("cudaMemcpy");
  fake_device_begin(handle, -1, nullptr);
  const Stream& stream = *stream_of(handle);
  const bool reads_device = is_device(from), writes_device = is_device(to);
  if ((writes_device && !is_allocated(to)) || (reads_device && !is_allocated(from))) {
    fprintf(log_file(), "fake device: %s outside every allocation\n", what);
    log_stack();
    return fail(cudaErrorInvalidValue);
  }
  const bool watched = settings().arithmetic;
  if (reads_device && watched) touch(stream, reinterpret_cast<uintptr_t>(from), bytes, false, what);
  if (writes_device && watched) touch(stream, reinterpret_cast<uintptr_t>(to), bytes, true, what);
  const bool writes_pinned = returns_early && is_pinned(to);
  if (is_pinned(from)) settle(stream.clock, reinterpret_cast<uintptr_t>(from), bytes);
  if (writes_pinned) {
    settle(stream.clock, reinterpret_cast<uintptr_t>(to), bytes);
    put_aside(stream, reinterpret_cast<uintptr_t>(to), bytes);
  }
  if (watched || !reads_device || !writes_device)
    memmove(fake_device_view(to), fake_device_view(from), bytes);
  end_operation();
  // To memory that is not pinned: it is there when the call comes back.
  const bool is_over = !returns_early || (!writes_device && !is_pinned(to));
  if (returns_early && watched) {
    take_off(to, stream, true, what);
    take_off(from, stream, false, what);
  }
  if (is_over) learn(stream.clock);
  return cudaSuccess;
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t handle, bool returns_early,
                 const char* what) {
  if (bytes == 0) return cudaSuccess;
  set_up();
  {
    Lock lock;
    if (const cudaError_t error = returns_early ? cudaSuccess : refuse_unsafe();
        error != cudaSuccess)
      return error;
    Stream& stream = *stream_of(handle);
    const int state = capture_state(stream);
    if (state > 0) return static_cast<cudaError_t>(state);
    if (state == kRecords) {
      // Of pageable memory it would copy now.
      if (!is_unpageable(to) || !is_unpageable(from)) return refuse_on(stream);
      record(stream, [=](void* on) {
        copy_now(to, from, bytes, static_cast<cudaStream_t>(on), returns_early, what);
      });
      return cudaSuccess;
    }
  }
  return copy_now(to, from, bytes, handle, returns_early, what);
}

void set_now(void* p, int value, size_t bytes, void* stream) {
  Lock lock;
  fake_device_begin(stream, -1, nullptr);
  fake_device_access(stream, -1, p, bytes, 1, "memset");
  fake_device_launched("memset", 1, 0, bytes);
  if (settings().arithmetic || bytes <= kFakeDeviceZeroed)
    memset(fake_device_view(p), value, bytes);
  end_operation();
}

// Whether so much is over.
cudaError_t ask(const Clock& clock) {
  if (!has_launched()) return cudaSuccess;
  if (!is_known(clock) && is_late()) return cudaErrorNotReady;
  learn(clock);
  return cudaSuccess;
}

}  // namespace

void fake_device::wait_for_device() {
  std::vector<Stream*> streams;
  {
    Lock lock;
    streams = all_streams();
  }
  for (const Stream* stream : streams) wait_while_stuck(stream->stuck);
  Lock lock;
  count_wait("cudaDeviceSynchronize");
  for (const Stream* stream : streams)
    if (stream->device == current_device()) learn(stream->clock);
}

extern "C" {

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return copy(to, from, bytes, nullptr, false, direction(to, from));
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return copy(to, from, bytes, stream, true, direction(to, from));
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes,
                                cudaStream_t stream) {
  return copy(to, from, bytes, stream, true, "copy between devices");
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t stream) {
  for (size_t row = 0; row < height; ++row) {
    const cudaError_t error = copy(static_cast<char*>(to) + row * to_pitch,
                                   static_cast<const char*>(from) + row * from_pitch, width, stream,
                                   true, direction(to, from));
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  Lock lock;
  const int state = capture_state(*stream_of(stream));
  if (state > 0) return static_cast<cudaError_t>(state);
  if (state == kRecords)
    record(*stream_of(stream), [=](void* on) { set_now(p, value, bytes, on); });
  else
    set_now(p, value, bytes, stream);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* p, int value, size_t bytes) {
  {
    Lock lock;
    if (const cudaError_t error = refuse_unsafe(); error != cudaSuccess) return error;
  }
  return cudaMemsetAsync(p, value, bytes, nullptr);
}

cudaError_t cudaDeviceSynchronize() {
  {
    Lock lock;
    if (const cudaError_t error = refuse_device(current_device()); error != cudaSuccess)
      return error;
  }
  if (!drops_wait("cudaDeviceSynchronize")) wait_for_device();
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int) {
  Lock lock;
  Stream* stream = make_stream(current_device());
  stream->blocks = (flags & cudaStreamNonBlocking) == 0;
  *out = reinterpret_cast<cudaStream_t>(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* out) { return cudaStreamCreateWithPriority(out, 0, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags) {
  return cudaStreamCreateWithPriority(out, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  {
    Lock lock;
    if (const cudaError_t error = refuse_on(*stream_of(stream)); error != cudaSuccess) return error;
  }
  if (drops_wait("cudaStreamSynchronize")) return cudaSuccess;
  wait_while_stuck(stream_of(stream)->stuck);
  Lock lock;
  count_wait("cudaStreamSynchronize");
  learn(stream_of(stream)->clock);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Lock lock;
  if (const cudaError_t error = refuse_on(*stream_of(stream)); error != cudaSuccess) return error;
  return ask(stream_of(stream)->clock);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  {
    Lock lock;
    cudaError_t result = cudaSuccess;
    if (wait_in_capture(*stream_of(handle), *event_of(event), result)) return result;
  }
  if (settings().ignore_waits || drops_wait("cudaStreamWaitEvent")) return cudaSuccess;
  Lock lock;
  if (!event_of(event)->recorded) return cudaSuccess;
  Stream& stream = *stream_of(handle);
  join(stream.clock, event_of(event)->clock);
  stream.stuck |= event_of(event)->stuck;
  stream.time = std::max(stream.time, event_of(event)->time);
  return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void* data,
                                  unsigned) {
  {
    Lock lock;
    if (const cudaError_t error = refuse_on(*stream_of(stream)); error != cudaSuccess) return error;
  }
  call(stream, cudaSuccess, data);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) {
  *out = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* out) { return cudaEventCreateWithFlags(out, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event_of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream, unsigned) {
  Lock lock;
  Event& event = *event_of(handle);
  if (record_event(*stream_of(stream), event)) return cudaSuccess;
  fake_device_begin(stream, -1, nullptr);
  event.clock = stream_of(stream)->clock;
  event.stuck = stream_of(stream)->stuck;
  event.recorded = true;
  event.time = time_on(*stream_of(stream));
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
cudaError_t cudaEventQuery(cudaEvent_t handle) {
  Lock lock;
  const Event& event = *event_of(handle);
  if (const cudaError_t error = refuse_event(event); error != cudaSuccess) return error;
  if (const cudaError_t error = refuse_unsafe(); error != cudaSuccess) return error;
  if (!event.recorded) return cudaSuccess;
  if (event.stuck && is_hung()) return cudaErrorNotReady;
  return ask(event.clock);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  {
    Lock lock;
    if (const cudaError_t error = refuse_event(*event_of(event)); error != cudaSuccess)
      return error;
  }
  if (drops_wait("cudaEventSynchronize")) return cudaSuccess;
  wait_while_stuck(event_of(event)->stuck);
  Lock lock;
  count_wait("cudaEventSynchronize");
  if (event_of(event)->recorded) learn(event_of(event)->clock);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  Lock lock;
  for (const cudaEvent_t event : {from, to})
    if (const cudaError_t error = refuse_event(*event_of(event)); error != cudaSuccess)
      return error;
  *milliseconds = static_cast<float>((event_of(to)->time - event_of(from)->time) / 1000);
  return cudaSuccess;
}
}
