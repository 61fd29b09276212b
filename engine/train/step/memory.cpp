#include "engine/train/step/memory.h"

#include <c10/core/CPUAllocator.h>

#include <array>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "engine/launch/device/device.h"

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
thread_local constinit int32_t unit_of_thread = MemoryMeter::kNoUnit;

// What was counted at which address. Thread-safe.
class Ledger {
 public:
  struct Counted {
    int64_t bytes = 0;
    std::shared_ptr<MemoryCounter> by;  // nullptr: of a device
    int32_t unit = MemoryMeter::kNoUnit;
  };
  void add(const void* at, Counted counted) {
    Part& part = part_of(at);
    std::lock_guard lock(part.mutex);
    part.counted[at] = std::move(counted);
  }
  void remove(const void* at) {
    Part& part = part_of(at);
    std::lock_guard lock(part.mutex);
    const auto found = part.counted.find(at);
    if (found == part.counted.end()) return;
    if (found->second.by)
      found->second.by->live.fetch_sub(found->second.bytes, std::memory_order_relaxed);
    part.counted.erase(found);
  }
  template <class Visit>
  void each(Visit visit) {
    for (Part& part : parts_) {
      std::lock_guard lock(part.mutex);
      for (const auto& [at, counted] : part.counted) visit(at, counted);
    }
  }

 private:
  struct Part {
    std::mutex mutex;
    std::unordered_map<const void*, Counted> counted;
  };
  Part& part_of(const void* at) {
    return parts_[(reinterpret_cast<uintptr_t>(at) >> 6) % parts_.size()];
  }
  std::array<Part, 64> parts_;
};

// Of the units' tensors on devices. LibTorch's allocator tells of each one.
Ledger& device_ledger() {
  static auto* one = new Ledger;  // tensors outlive main
  return *one;
}

void device_memory(const void* at, int64_t bytes) {
  if (bytes == 0)
    device_ledger().remove(at);
  else if (unit_of_thread != MemoryMeter::kNoUnit)
    device_ledger().add(at, {bytes, nullptr, unit_of_thread});
}

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
      all_->ledger_.add(at, {static_cast<int64_t>(bytes), counter_of_thread, unit_of_thread});
    }
    return {at, at, &give_back, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    below_->copy_data(to, from, bytes);
  }

  static Ledger& ledger() { return all_->ledger_; }

 private:
  explicit CountingAllocator(c10::Allocator* below) : below_(below) {}
  // Also of memory that was there before.
  static void give_back(void* at) {
    if (at == nullptr) return;
    all_->ledger_.remove(at);
    all_->below_->raw_deleter()(at);
  }
  static inline CountingAllocator* all_ = nullptr;
  c10::Allocator* below_;
  Ledger ledger_;
};

}  // namespace

struct MemoryMeter::Impl {
  explicit Impl(c10::Device d) : device(d), cuda(d.is_cuda() ? device::cuda_part() : nullptr) {
    if (cuda) {
      cuda->on_memory(device_memory);
      return;
    }
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

int32_t MemoryMeter::unit_is(int32_t unit) { return std::exchange(unit_of_thread, unit); }

void MemoryMeter::each_of_units(
    const std::function<void(const void*, int64_t, int32_t)>& visit) const {
  Ledger& ledger = impl_->cuda ? device_ledger() : CountingAllocator::ledger();
  const MemoryCounter* by = impl_->cuda ? nullptr : impl_->counter.get();
  ledger.each([&](const void* at, const Ledger::Counted& counted) {
    if (counted.unit != kNoUnit && counted.by.get() == by) visit(at, counted.bytes, counted.unit);
  });
}

std::string MemoryMeter::snapshot() const {
  return impl_->cuda ? impl_->cuda->memory_snapshot(impl_->device.index()) : std::string();
}

}  // namespace meshwright::train
