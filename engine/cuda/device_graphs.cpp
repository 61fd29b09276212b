#include "engine/cuda/device_graphs.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "sdk/base/device_graphs.h"

namespace meshwright::cuda {

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

int64_t graph_bytes(int device) { return Pool::beside_tensors(device); }

void offer_device_graphs() {
  static const DeviceGraphs offered{make};
  set_device_graphs(&offered);
}

}  // namespace meshwright::cuda
