#include "engine/trainer/memory.h"

#include <c10/core/CPUAllocator.h>

#include <array>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "engine/device/device.h"

namespace meshwright::train {

// Bytes of tensors that one thread has made; another one may give them back, such as gloo's, which
// drops a tensor when it is done with it.
struct MemoryCounter {
  std::atomic<int64_t> live{0}, peak{0};
  std::function<void(int64_t)> exhausted;  // of the thread that counts
  void add(int64_t bytes) {
    const int64_t now = live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    int64_t most = peak.load(std::memory_order_relaxed);
    while (now > most && !peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
    }
  }
};

namespace {

thread_local std::shared_ptr<MemoryCounter> counter_of_thread;

// Stands before LibTorch's allocator of CPU memory and counts for the threads that ask. Memory
// keeps its address and one way to be given back, which oneDNN's raw allocations rely on; so what
// was counted is looked up by address.
class CountingAllocator final : public c10::Allocator {
 public:
  static void install() {
    static CountingAllocator* const ours = [] {
      all_ = new CountingAllocator(c10::GetCPUAllocator());  // outlives all tensors
      c10::SetCPUAllocator(all_);
      return all_;
    }();
    (void)ours;
  }
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr memory;
    try {
      memory = below_->allocate(bytes);
    } catch (...) {
      if (counter_of_thread && counter_of_thread->exhausted)
        counter_of_thread->exhausted(static_cast<int64_t>(bytes));
      throw;
    }
    const c10::Device device = memory.device();
    void* at = memory.release_context();
    if (at != nullptr && counter_of_thread) {
      counter_of_thread->add(static_cast<int64_t>(bytes));
      Part& part = part_of(at);
      std::lock_guard lock(part.mutex);
      part.counted[at] = {static_cast<int64_t>(bytes), counter_of_thread};
    }
    return {at, at, &give_back, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    below_->copy_data(to, from, bytes);
  }

 private:
  struct Counted {
    int64_t bytes = 0;
    std::shared_ptr<MemoryCounter> by;
  };
  struct Part {
    std::mutex mutex;
    std::unordered_map<void*, Counted> counted;
  };
  explicit CountingAllocator(c10::Allocator* below) : below_(below) {}
  Part& part_of(void* at) { return parts_[(reinterpret_cast<uintptr_t>(at) >> 6) % parts_.size()]; }
  // Also of memory that was there before.
  static void give_back(void* at) {
    if (at == nullptr) return;
    {
      Part& part = all_->part_of(at);
      std::lock_guard lock(part.mutex);
      if (auto found = part.counted.find(at); found != part.counted.end()) {
        found->second.by->live.fetch_sub(found->second.bytes, std::memory_order_relaxed);
        part.counted.erase(found);
      }
    }
    all_->below_->raw_deleter()(at);
  }
  static inline CountingAllocator* all_ = nullptr;
  c10::Allocator* below_;
  std::array<Part, 64> parts_;
};

}  // namespace

struct MemoryMeter::Impl {
  explicit Impl(c10::Device d) : device(d), cuda(d.is_cuda() ? device::cuda_part() : nullptr) {
    if (cuda) return;
    CountingAllocator::install();
    outer = std::exchange(counter_of_thread, counter);
  }
  ~Impl() {
    if (cuda)
      cuda->on_out_of_memory({});
    else
      counter_of_thread = std::move(outer);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  c10::Device device;
  const cuda::CudaPart* cuda;
  std::shared_ptr<MemoryCounter> counter = std::make_shared<MemoryCounter>(), outer;
};

MemoryMeter::MemoryMeter(c10::Device device) : impl_(std::make_unique<Impl>(device)) {}
MemoryMeter::~MemoryMeter() = default;
int64_t MemoryMeter::live() const {
  return impl_->cuda ? impl_->cuda->live_bytes(impl_->device.index()) : impl_->counter->live.load();
}
int64_t MemoryMeter::peak() const {
  return impl_->cuda ? impl_->cuda->peak_bytes(impl_->device.index()) : impl_->counter->peak.load();
}
void MemoryMeter::reset_peak() {
  if (impl_->cuda)
    impl_->cuda->reset_peak(impl_->device.index());
  else
    impl_->counter->peak = impl_->counter->live.load();
}

void MemoryMeter::on_exhausted(std::function<void(int64_t)> hear) {
  if (impl_->cuda)
    impl_->cuda->on_out_of_memory(std::move(hear));
  else
    impl_->counter->exhausted = std::move(hear);
}
std::string MemoryMeter::snapshot() const {
  return impl_->cuda ? impl_->cuda->memory_snapshot(impl_->device.index()) : std::string();
}

}  // namespace meshwright::train
