// What the libraries of the fake device share: where device memory really lies, and who touches it
// in what order. The runtime (libcudart.so.13) has these functions; NCCL and the operators call
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

// Of an operation in the order: its stream's number, and the how many'th it is there; 0: none.
struct FakeDevicePlace {
  size_t stream = 0;
  uint64_t time = 0;
};

extern "C" {
// The host's view of device or pinned memory; other memory is its own view. Device addresses
// themselves are mapped without access, so that the host faults on them as beside a true device.
void* fake_device_view(const void* p);
int fake_device_of(const void* p);  // -1: not device memory
int fake_device_capability();       // 90 is 9.0
// What the driver's interface has apart: addresses, of the current device (0: there are no more),
// memory of a device (0: it has no more), and the one at the other (0: it is not there).
uintptr_t fake_device_reserve(size_t bytes);
void fake_device_unreserve(uintptr_t address, size_t bytes);
int fake_device_take(int device, size_t bytes);
void fake_device_give(int device, size_t bytes);
void fake_device_map(uintptr_t address, size_t bytes);
int fake_device_unmap(uintptr_t address, size_t bytes);
// Whether all of these bytes are allocated memory of a device.
int fake_device_holds(const void* p, size_t bytes);
// From now on `told` is called where device memory is given back, under the runtime's lock.
void fake_device_watch_frees(void (*told)(const void* p, size_t bytes));
// An operation begins on a stream: it comes after all that the host and the stream know to be over.
void fake_device_begin(void* stream, int device, const char* what);
// The operation that began last on the stream reads or writes these bytes.
void fake_device_access(void* stream, int device, const void* p, size_t bytes, int write,
                        const char* what);
// The operation of this thread has done its work.
void fake_device_end();
// Whether the operation that began last on the stream comes after the one at that place, where it
// is then itself.
int fake_device_follows(void* stream, int device, FakeDevicePlace* place);
// How a stream stands to captures of graphs: 0, what is called on it runs now; -1, it is captured,
// so that fake_device_record() keeps `run` for each launch of the graph, and what
// fake_device_launched() is told until fake_device_recorded() is the graph's; otherwise CUDA's
// error, by its number.
int fake_device_capture(void* stream, int device);
void fake_device_record(void* stream, int device, std::function<void(void* stream)> run);
void fake_device_recorded();
void fake_device_hang(void* stream, int device);  // what follows on the stream never ends, until
void fake_device_release();
// 0: FAKE_DEVICE_ARITHMETIC=0, so operators, kernels and collectives are told but not computed, but
// for those of so few elements or bytes: what ranks tell each other, and what the host reads.
int fake_device_computes();
constexpr long kFakeDeviceFewElements = 64;
constexpr size_t kFakeDeviceFewBytes = size_t{64} << 10;
// Then results of so many bytes are zeros, and larger ones what the memory had.
constexpr size_t kFakeDeviceZeroed = 4096;
// For the counters, where they are wanted (FAKE_DEVICE_COUNTERS): kernels with the bytes that they
// read and write, bytes allocated now, and a step of the program that ends.
int fake_device_counts();
void fake_device_launched(const char* what, long kernels, size_t read, size_t written);
void fake_device_allocated(size_t bytes);
void fake_device_step();
// What the program keeps in memory of a device or of the host, until it keeps something else there.
void fake_device_name(const void* p, size_t bytes, const char* name);
// A line for the log.
void fake_device_note(const char* format, ...) __attribute__((format(printf, 1, 2)));
}
