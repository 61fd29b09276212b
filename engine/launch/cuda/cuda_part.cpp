#include "engine/launch/cuda/cuda_part.h"

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nvrtc.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/NCCLUtils.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>
#include <vector>

#include "kernel_source.h"
#include "meshwright/export.h"
#include "sdk/base/device_graphs.h"
#include "sdk/base/kernels/arguments.h"

namespace meshwright::cuda {

// Compiles kernels of our own (sdk/base/kernels) at run time, and runs them.

namespace {

// NVRTC comes with LibTorch's wheel, but nothing else here needs it.
class Compiler {
 public:
  Compiler() {
    const std::string file = "libnvrtc.so." + std::to_string(CUDART_VERSION / 1000);
    library_ = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) throw std::runtime_error(::dlerror());
  }
  // Code for the architecture ("sm_90") of all kernels of a type.
  std::string compile(const std::string& type, const std::string& architecture) const {
    nvrtcProgram program = nullptr;
    check(call<nvrtcCreateProgram>("nvrtcCreateProgram", &program, kKernelSource, "kernels.cu", 0,
                                   nullptr, nullptr));
    const std::vector<std::string> options{
        "--gpu-architecture=" + architecture, "--std=c++17", "--device-as-default-execution-space",
        // The CPU's numbers, which does not fuse either.
        "--fmad=false", "-DMESHWRIGHT_KERNELS=MESHWRIGHT_KERNELS_" + type};
    std::vector<const char*> texts;
    for (const std::string& option : options) texts.push_back(option.c_str());
    const nvrtcResult result = call<nvrtcCompileProgram>(
        "nvrtcCompileProgram", program, static_cast<int>(texts.size()), texts.data());
    if (result == NVRTC_ERROR_COMPILATION) throw std::runtime_error(log_of(program));
    check(result);
    size_t size = 0;
    check(call<nvrtcGetCUBINSize>("nvrtcGetCUBINSize", program, &size));
    std::string out(size, 0);
    check(call<nvrtcGetCUBIN>("nvrtcGetCUBIN", program, out.data()));
    call<nvrtcDestroyProgram>("nvrtcDestroyProgram", &program);
    return out;
  }

 private:
  template <auto function, class... Arguments>
  nvrtcResult call(const char* name, Arguments... arguments) const {
    auto* found = reinterpret_cast<decltype(function)>(::dlsym(library_, name));
    if (found == nullptr) throw std::runtime_error(::dlerror());
    return found(arguments...);
  }
  void check(nvrtcResult result) const {
    if (result != NVRTC_SUCCESS)
      throw std::runtime_error("NVRTC says " + std::to_string(static_cast<int>(result)));
  }
  std::string log_of(nvrtcProgram program) const {
    size_t size = 0;
    check(call<nvrtcGetProgramLogSize>("nvrtcGetProgramLogSize", program, &size));
    std::string out(size, 0);
    check(call<nvrtcGetProgramLog>("nvrtcGetProgramLog", program, out.data()));
    return out;
  }
  void* library_;
};

// The code of a type's kernels for one architecture, on all devices of it. Never unloaded.
class Module {
 public:
  Module(const Compiler& compiler, const std::string& type, const std::string& architecture)
      : code_(compiler.compile(type, architecture)), suffix_("_" + type) {
    C10_CUDA_CHECK(
        cudaLibraryLoadData(&library_, code_.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  }
  const void* kernel(const char* name) {
    const auto place = kernels_.try_emplace(name, nullptr).first;
    if (place->second == nullptr)
      C10_CUDA_CHECK(
          cudaLibraryGetKernel(&place->second, library_, (place->first + suffix_).c_str()));
    return place->second;
  }

 private:
  std::string code_, suffix_;
  cudaLibrary_t library_ = nullptr;
  std::map<std::string, cudaKernel_t, std::less<>> kernels_;
};

class Modules {
 public:
  // nullptr: it cannot be had.
  Module* of(int device, const char* type) {
    const std::pair<std::string, std::string> key{architecture(device), type};
    const auto [place, fresh] = all_.try_emplace(key, nullptr);
    if (fresh) place->second = make(key.first, key.second);
    return place->second;
  }
  std::mutex mutex;

 private:
  const std::string& architecture(int device) {
    const auto [place, fresh] = architectures_.try_emplace(device);
    if (fresh) {
      int major = 0, minor = 0;
      C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
      C10_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
      place->second = "sm_" + std::to_string(major) + std::to_string(minor);
    }
    return place->second;
  }
  Module* make(const std::string& architecture, const std::string& type) {
    try {
      static const Compiler compiler;
      return new Module(compiler, type, architecture);
    } catch (const std::exception& error) {
      TORCH_WARN_ONCE(
          "kernels of our own cannot be compiled for this device; operators do the same, more "
          "slowly: ",
          error.what());
      return nullptr;
    }
  }

  std::map<int, std::string> architectures_;
  std::map<std::pair<std::string, std::string>, Module*> all_;
};

Modules& modules() {
  static auto* all = new Modules;  // never destroyed: launches come from threads that outlive main
  return *all;
}

// What a thread found last, without a lock. Names are literals of libraries that stay loaded, so
// that their addresses tell them apart.
template <class Value>
class Found {
 public:
  template <class Find>
  Value get(int device, const char* name, const char* type, Find find) {
    const auto mixed = reinterpret_cast<uintptr_t>(name) * 31 + reinterpret_cast<uintptr_t>(type);
    Entry& entry = entries_[(mixed / 8 + static_cast<uintptr_t>(device)) % entries_.size()];
    if (entry.device != device || entry.name != name || entry.type != type) {
      const std::lock_guard lock(modules().mutex);
      entry = {device, name, type, find()};
    }
    return entry.value;
  }

 private:
  struct Entry {
    int device = -1;
    const char *name = nullptr, *type = nullptr;
    Value value{};
  };
  std::array<Entry, 64> entries_;
};

bool ready(int device, const char* type) {
  thread_local Found<bool> found;
  return found.get(device, nullptr, type, [&] { return modules().of(device, type) != nullptr; });
}

void launch(int device, const char* name, const char* type, unsigned blocks, unsigned shared_bytes,
            const void* arguments) {
  thread_local Found<const void*> found;
  const void* kernel = found.get(device, name, type, [&] {
    Module* module = modules().of(device, type);
    TORCH_INTERNAL_ASSERT(module != nullptr);
    return module->kernel(name);
  });
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  void* given[] = {const_cast<void*>(arguments)};
  C10_CUDA_CHECK(cudaLaunchKernel(kernel, dim3(blocks), dim3(kernels::kBlock), given, shared_bytes,
                                  c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

// From now on the SDK uses them.
void offer_own_kernels() {
  static const DeviceKernels offered{ready, launch};
  set_device_kernels(&offered);
}

// CUDA graphs for sdk/base/device_graphs.h.

namespace {

// All captures of a device are made on one stream: cuBLAS has memory for each.
c10::cuda::CUDAStream capture_stream(int device) {
  static std::mutex mutex;
  static auto* streams = new std::map<int, c10::cuda::CUDAStream>;  // it may end late
  const std::lock_guard lock(mutex);
  auto found = streams->find(device);
  if (found == streams->end())
    found =
        streams
            ->emplace(device, c10::cuda::getStreamFromPool(/*isHighPriority=*/false,
                                                           static_cast<c10::DeviceIndex>(device)))
            .first;
  return found->second;
}

void wait_for(const c10::cuda::CUDAStream& stream, const c10::cuda::CUDAStream& other) {
  c10::cuda::CUDAEvent event;
  event.record(other);
  event.block(stream);
}

struct LibTorchGraph : at::cuda::CUDAGraph {
  // LibTorch ends a capture that CUDA refused neither for its allocators nor for its generators,
  // which would go on as if it were under way.
  void give_up(int device, c10::MempoolId_t memory) {
    for (const auto& counted : captured_generator_states_) counted.first->capturing_ = false;
    const auto index = static_cast<c10::DeviceIndex>(device);
    try {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(index, memory);
      c10::cuda::CUDACachingAllocator::releasePool(index, memory);
      at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(memory);
      at::getHostAllocator(at::kCUDA)->release_pool(memory);
    } catch (const c10::Error&) {  // ended already, or never begun
    }
  }
};

// Memory of graphs, and what of it no tensor has between captures: launches use it all the same.
// LibTorch's counters know tensors alone.
class Pool {
 public:
  explicit Pool(int of) : device(of) {
    const std::lock_guard lock(mutex());
    all().insert(this);
  }
  ~Pool() {
    const std::lock_guard lock(mutex());
    all().erase(this);
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // After a capture.
  void count() {
    int64_t found = 0;
    for (const auto& segment :
         c10::cuda::CUDACachingAllocator::snapshot(id, /*include_traces=*/false).segments)
      found += static_cast<int64_t>(segment.total_size - segment.allocated_size);
    const std::lock_guard lock(mutex());
    beside_tensors_ = found;
  }
  static int64_t beside_tensors(int device) {
    const std::lock_guard lock(mutex());
    int64_t out = 0;
    for (const Pool* pool : all())
      if (pool->device == device) out += pool->beside_tensors_;
    return out;
  }

  const int device;
  const c10::MempoolId_t id = at::cuda::graph_pool_handle();

 private:
  // They may end late.
  static std::mutex& mutex() {
    static auto* one = new std::mutex;
    return *one;
  }
  static std::set<const Pool*>& all() {
    static auto* pools = new std::set<const Pool*>;
    return *pools;
  }
  int64_t beside_tensors_ = 0;
};

class Graph final : public DeviceGraph {
 public:
  Graph(int device, const Graph* beside)
      : device_(device),
        first_(beside == nullptr),
        pool_(beside != nullptr ? beside->pool_ : std::make_shared<Pool>(device)) {}

  void capture(const std::function<void()>& work) override {
    const c10::cuda::CUDAStream mine = capture_stream(device_),
                                outer = c10::cuda::getCurrentCUDAStream(
                                    static_cast<c10::DeviceIndex>(device_));
    // LibTorch's class sets numbers of generators, before a capture and at launches.
    wait_for(mine, outer);
    // What is cached for others is no memory of a graph's, and is not given back during a capture.
    if (first_) c10::cuda::CUDACachingAllocator::emptyCache();
    capture_on(mine, work);
    wait_for(outer, mine);
    pool_->count();
  }
  void launch() override { graph_.replay(); }

 private:
  void capture_on(const c10::cuda::CUDAStream& stream, const std::function<void()>& work) {
    const c10::cuda::CUDAStreamGuard guard(stream);
    try {
      // Other threads may ask for events meanwhile: those that watch collectives.
      graph_.capture_begin(pool_->id, cudaStreamCaptureModeThreadLocal);
      work();
    } catch (...) {
      try {
        graph_.capture_end();
      } catch (const c10::Error&) {  // the first error tells more
        graph_.give_up(device_, pool_->id);
      }
      throw;
    }
    try {
      graph_.capture_end();
    } catch (...) {
      graph_.give_up(device_, pool_->id);
      throw;
    }
  }

  int device_;
  bool first_;  // of its memory
  std::shared_ptr<Pool> pool_;
  LibTorchGraph graph_;
};

std::unique_ptr<DeviceGraph> make(int device, const DeviceGraph* beside) {
  return std::make_unique<Graph>(device, static_cast<const Graph*>(beside));
}

}  // namespace

// Memory of a device that graphs have for their launches, but for tensors in it, which LibTorch
// counts. As of the last captures.
int64_t graph_bytes(int device) { return Pool::beside_tensors(device); }

void offer_device_graphs() {
  static const DeviceGraphs offered{make};
  set_device_graphs(&offered);
}

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
