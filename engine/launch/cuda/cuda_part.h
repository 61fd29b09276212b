// What needs CUDA and NCCL, in a shared object of its own: a CPU job never loads the CUDA
// libraries.
//
//   const CudaPart& cuda = load_cuda_part();   // engine/launch/device; throws when the CUDA
//   libraries are not there
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace meshwright::cuda {

struct CudaPart {
  int64_t (*device_count)();  // 0 when there is none, or no driver
  std::string (*device_name)(int64_t device);
  // Makes it the current device of the calling thread and creates its context.
  void (*use_device)(int64_t device);
  // A ProcessGroupNCCL with a communicator of its own, which waits here for all ranks. `timeout` is
  // LibTorch's own for collectives, its last resort.
  c10::intrusive_ptr<c10d::Backend> (*make_nccl)(const c10::intrusive_ptr<c10d::Store>& store,
                                                 int rank, int size, int64_t device,
                                                 std::chrono::milliseconds timeout);
  // Waits for all work of the current device.
  void (*synchronize)();
  // Bytes of live tensors on a device, now and at most since reset_peak(), and beside them of what
  // graphs have for their launches.
  int64_t (*live_bytes)(int64_t device);
  int64_t (*peak_bytes)(int64_t device);
  void (*reset_peak)(int64_t device);
  // Hears of an allocation that finds no memory, before that throws, and how much was asked for;
  // empty: nobody.
  void (*on_out_of_memory)(std::function<void(int64_t wanted)> hear);
  // Hears of each tensor's memory when it is given out, and with 0 bytes when it is given back, in
  // the thread that asks, within the allocator's lock. The first one stays, and is the only one.
  void (*on_memory)(void (*hear)(const void* at, int64_t bytes));
  // What LibTorch's allocator has on a device: segments and their blocks, as JSON.
  std::string (*memory_snapshot)(int64_t device);
  std::string (*device_uuid)(int64_t device);  // the same for all processes that see the device
  // On its host's bus. NCCL tells devices apart by it; instances of one GPU (MIG) have it in
  // common.
  std::string (*device_address)(int64_t device);
  std::string (*nccl_version)();
  bool (*reaches)(int64_t from, int64_t to);  // the memory of another device of this host
  int64_t (*device_memory)(int64_t device);   // bytes, all of it
  int64_t (*device_units)(int64_t device);    // streaming multiprocessors
  // Whether segments of LibTorch's allocator can grow; what PYTORCH_ALLOC_CONF says of all else
  // stays. Before use_device(): segments that are there stay as they are.
  void (*expand_segments)(bool wanted);
};

}  // namespace meshwright::cuda

extern "C" const meshwright::cuda::CudaPart* meshwright_cuda_part();
