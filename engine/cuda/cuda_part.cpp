#include "engine/cuda/cuda_part.h"

#include <ATen/Context.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <torch/csrc/distributed/c10d/NCCLUtils.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>

#include "engine/cuda/device_graphs.h"
#include "engine/cuda/own_kernels.h"
#include "meshwright/export.h"

namespace meshwright::cuda {

namespace {

c10::DeviceIndex index_of(int64_t device) { return static_cast<c10::DeviceIndex>(device); }

int64_t device_count() { return c10::cuda::device_count(); }

cudaDeviceProp properties_of(int64_t device) {
  cudaDeviceProp properties{};
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, static_cast<int>(device)));
  return properties;
}

std::string device_name(int64_t device) { return properties_of(device).name; }

std::string device_uuid(int64_t device) {
  std::string out;
  for (char byte : properties_of(device).uuid.bytes)
    for (int half : {(byte >> 4) & 15, byte & 15}) out += "0123456789abcdef"[half];
  return out;
}

std::string device_address(int64_t device) {
  const cudaDeviceProp properties = properties_of(device);
  std::string out;
  for (int part : {properties.pciDomainID, properties.pciBusID, properties.pciDeviceID})
    out += (out.empty() ? "" : ":") + std::to_string(part);
  return out;
}

std::string nccl_version() { return c10d::getNcclVersion(); }

bool reaches(int64_t from, int64_t to) {
  int out = 0;
  C10_CUDA_CHECK(cudaDeviceCanAccessPeer(&out, static_cast<int>(from), static_cast<int>(to)));
  return out != 0;
}

int64_t device_memory(int64_t device) {
  return static_cast<int64_t>(properties_of(device).totalGlobalMem);
}

int64_t device_units(int64_t device) { return properties_of(device).multiProcessorCount; }

void expand_segments(bool wanted) {
  namespace allocator = c10::CachingAllocator;
  if (allocator::AcceleratorAllocatorConfig::use_expandable_segments() == wanted) return;
  // Settings that are not given again go back to their defaults.
  std::string settings = allocator::getAllocatorSettings();
  if (!settings.empty()) settings += ",";
  allocator::setAllocatorSettings(settings + "expandable_segments:" + (wanted ? "True" : "False"));
}

void use_device(int64_t device) {
  at::globalContext().lazyInitDevice(at::kCUDA);
  c10::cuda::set_device(index_of(device));
  C10_CUDA_CHECK(cudaFree(nullptr));
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, int64_t device,
                                            std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  options->timeout = timeout;
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
  const at::Device bound(at::kCUDA, index_of(device));
  group->setBoundDeviceId(bound);
  // Now, while all ranks of the group are here: messages between some of them must not wait for the
  // others later.
  if (size > 1) group->eagerConnectSingleDevice(bound);
  return group;
}

void synchronize() { c10::cuda::device_synchronize(); }

const c10::CachingDeviceAllocator::Stat& bytes(
    const c10::CachingDeviceAllocator::DeviceStats& stats) {
  return stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
}

// What graphs have is theirs for good, from their capture on.
int64_t live_bytes(int64_t device) {
  return bytes(c10::cuda::CUDACachingAllocator::getDeviceStats(index_of(device))).current +
         graph_bytes(static_cast<int>(device));
}
int64_t peak_bytes(int64_t device) {
  return bytes(c10::cuda::CUDACachingAllocator::getDeviceStats(index_of(device))).peak +
         graph_bytes(static_cast<int>(device));
}
void reset_peak(int64_t device) {
  c10::cuda::CUDACachingAllocator::resetPeakStats(index_of(device));
}

// LibTorch's observers stay.
struct Observer {
  std::mutex mutex;
  bool attached = false;
  std::function<void(int64_t)> hear;
};
Observer& observer() {
  static auto* one = new Observer;  // allocations come from threads that outlive main
  return *one;
}

void on_out_of_memory(std::function<void(int64_t)> hear) {
  const std::lock_guard lock(observer().mutex);
  observer().hear = std::move(hear);
  if (std::exchange(observer().attached, true)) return;
  c10::cuda::CUDACachingAllocator::attachOutOfMemoryObserver(
      [](int64_t /*device*/, size_t wanted, size_t /*total*/, size_t /*free*/) {
        const std::lock_guard within(observer().mutex);
        if (observer().hear) observer().hear(static_cast<int64_t>(wanted));
      });
}

void on_memory(void (*hear)(const void*, int64_t)) {
  using Entry = c10::CachingDeviceAllocator::TraceEntry;
  static std::atomic<bool> attached = false;
  if (attached.exchange(true)) return;
  c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker([hear](const Entry& entry) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    const auto* at = reinterpret_cast<const void*>(entry.addr_);
    if (entry.action_ == Entry::ALLOC) hear(at, static_cast<int64_t>(entry.size_));
    if (entry.action_ == Entry::FREE_REQUESTED) hear(at, 0);
  });
}

std::string memory_snapshot(int64_t device) {
  auto number = [](size_t value) { return std::to_string(value); };
  auto flag = [](bool value) { return value ? "true" : "false"; };
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) free = total = 0;
  std::string out = "{\"device\":" + std::to_string(device) + ",\"free\":" + number(free) +
                    ",\"total\":" + number(total) + ",\"segments\":[";
  const char* between = "\n";
  for (const auto& segment : c10::cuda::CUDACachingAllocator::snapshot().segments) {
    if (segment.device != index_of(device)) continue;
    out += between + std::string("{\"address\":") + number(segment.address) +
           ",\"total_size\":" + number(segment.total_size) +
           ",\"allocated_size\":" + number(segment.allocated_size) +
           ",\"active_size\":" + number(segment.active_size) +
           ",\"is_large\":" + flag(segment.is_large) + ",\"blocks\":[";
    between = ",\n";
    const char* comma = "";
    for (const auto& block : segment.blocks) {
      out += comma + std::string("{\"size\":") + number(block.size) +
             ",\"requested_size\":" + number(block.requested_size) +
             ",\"allocated\":" + flag(block.allocated) + ",\"active\":" + flag(block.active) + "}";
      comma = ",";
    }
    out += "]}";
  }
  return out + "]}\n";
}

}  // namespace

}  // namespace meshwright::cuda

extern "C" MESHWRIGHT_API const meshwright::cuda::CudaPart* meshwright_cuda_part() {
  using namespace meshwright::cuda;
  offer_own_kernels();
  offer_device_graphs();
  static const CudaPart part{device_count,     device_name,    use_device,      make_nccl,
                             synchronize,      live_bytes,     peak_bytes,      reset_peak,
                             on_out_of_memory, on_memory,      memory_snapshot, device_uuid,
                             device_address,   nccl_version,   reaches,         device_memory,
                             device_units,     expand_segments};
  return &part;
}
