#include "engine/train/step/memory.h"

#include <c10/core/CPUAllocator.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <map>
#include <unordered_map>
#include <utility>

#include "engine/job/plan.h"
#include "engine/launch/device/device.h"
#include "engine/train/step/optimizer.h"
#include "meshwright/nn/module.h"
#include "meshwright/sharding_plan.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/held_memory.h"
#include "sdk/base/terminal/report.h"

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
    static std::once_flag once;
    std::call_once(once, [] {
      all_ = new CountingAllocator(c10::GetCPUAllocator());  // outlives all tensors
      c10::SetCPUAllocator(all_);
    });
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

MemoryMeter::MemoryMeter(c10::Device device)
    : device_(device), cuda_(device.is_cuda() ? device::cuda_part() : nullptr) {
  if (cuda_) {
    cuda_->on_memory(device_memory);
    return;
  }
  CountingAllocator::install();
  counter_ = std::make_shared<MemoryCounter>();
  outer_ = std::exchange(counter_of_thread, counter_);
}

MemoryMeter::~MemoryMeter() {
  if (cuda_)
    cuda_->on_out_of_memory({});
  else
    counter_of_thread = std::move(outer_);
}

int64_t MemoryMeter::live() const {
  return cuda_ ? cuda_->live_bytes(device_.index()) : counter_->live.load();
}

int64_t MemoryMeter::peak() const {
  return cuda_ ? cuda_->peak_bytes(device_.index()) : counter_->peak.load();
}

void MemoryMeter::reset_peak() {
  if (cuda_)
    cuda_->reset_peak(device_.index());
  else
    counter_->peak = counter_->live.load();
}

void MemoryMeter::on_exhausted(std::function<void(int64_t)> hear) {
  if (cuda_)
    cuda_->on_out_of_memory(std::move(hear));
  else
    counter_->exhausted = std::move(hear);
}

int32_t MemoryMeter::unit_is(int32_t unit) { return std::exchange(unit_of_thread, unit); }

void MemoryMeter::each_of_units(
    const std::function<void(const void*, int64_t, int32_t)>& visit) const {
  Ledger& ledger = cuda_ ? device_ledger() : CountingAllocator::ledger();
  ledger.each([&](const void* at, const Ledger::Counted& counted) {
    if (counted.unit != kNoUnit && counted.by == counter_) visit(at, counted.bytes, counted.unit);
  });
}

std::string MemoryMeter::snapshot() const {
  return cuda_ ? cuda_->memory_snapshot(device_.index()) : std::string();
}

namespace fs = std::filesystem;
namespace json = boost::json;

namespace {

enum What : uint8_t { weights, gradients, optimizer, gathered, reduced, activations, rest, kWhats };

// Memory that has been counted: what is a view of something else counts once.
class Counted {
 public:
  // How much of it was not counted yet.
  int64_t add(const void* memory, int64_t bytes) {
    int64_t begin = static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory)), end = begin + bytes,
            fresh = bytes;
    auto at = ranges_.upper_bound(begin);
    if (at != ranges_.begin() && std::prev(at)->second >= begin) --at;
    while (at != ranges_.end() && at->first <= end) {
      fresh -= std::max<int64_t>(0, std::min(end, at->second) - std::max(begin, at->first));
      begin = std::min(begin, at->first);
      end = std::max(end, at->second);
      at = ranges_.erase(at);
    }
    ranges_[begin] = end;
    return std::max<int64_t>(0, fresh);
  }

 private:
  std::map<int64_t, int64_t> ranges_;  // apart from each other
};

// Where its values are; nullptr: nowhere, as those of gradients between steps, whose memory is
// given back and whose tensors throw then.
const std::byte* memory_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) return nullptr;
  const void* storage =
      tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
  return storage == nullptr
             ? nullptr
             : static_cast<const std::byte*>(storage) +
                   static_cast<int64_t>(tensor.element_size()) * tensor.storage_offset();
}

std::string shown_unit(const std::string& unit) { return unit.empty() ? "the root" : unit; }

}  // namespace

MemoryReport::MemoryReport(MemoryMeter& meter, World& world, const fs::path& run)
    : meter_(meter),
      rank_(world.rank()),
      on_host_(world.device().is_cpu()),
      folder_(run / "memory") {
  std::error_code failed;
  for (const char* end : {".json", ".snapshot.json"})
    fs::remove(folder_ / ("rank_" + std::to_string(rank_) + end), failed);
  fs::remove(folder_, failed);  // the last of an earlier run's
  meter_.on_exhausted([this](int64_t wanted) { take(wanted); });
}

MemoryReport::~MemoryReport() { meter_.on_exhausted({}); }

void MemoryReport::model_is(Trainer& trainer, torch::nn::Module& model) {
  std::lock_guard lock(mutex_);
  trainer_ = &trainer;
  // The model itself first, which encloses its layers.
  units_ = {""};
  for (const PlannedUnit& unit : plan_units(trainer.outline()))
    if (!unit.root) units_.push_back(unit.module);
  const auto modules = model.named_modules("", /*include_self=*/true);
  for (size_t i = 0; i < units_.size(); ++i) {
    const auto* module = modules.find(units_[i]);
    HookHost* host = module == nullptr ? nullptr : HookHost::of(**module);
    if (host == nullptr) continue;
    auto outer = std::make_shared<int32_t>(MemoryMeter::kNoUnit);
    host->before_forward.push_back([i, outer](torch::nn::Module&, TensorRefs&) {
      *outer = MemoryMeter::unit_is(static_cast<int32_t>(i));
    });
    host->after_forward.push_back(
        [outer](torch::nn::Module&, TensorRefs&) { MemoryMeter::unit_is(*outer); });
  }
}

// Within a failing allocation, in any thread of the rank: it reads, and takes little memory.
void MemoryReport::take(int64_t wanted) noexcept {
  if (taking_.exchange(true)) return;  // memory ended in here
  try {
    std::lock_guard lock(mutex_);
    Held out;
    out.wanted = wanted;
    out.live = meter_.live();
    out.snapshot = meter_.snapshot();
    out.kinds = {{"weights"},
                 {"gradients"},
                 {"optimizer state"},
                 {"gathered parameters"},
                 {"gradients on their way"},
                 {"activations"},
                 {"the rest"}};
    Counted counted;
    int64_t sum = 0;
    auto count = [&](What what, const void* memory, int64_t bytes, bool on_host) {
      if (on_host != on_host_) return;
      const int64_t fresh = counted.add(memory, bytes);
      out.kinds[what].bytes += fresh;
      sum += fresh;
    };
    auto hold = [&](What what, const std::string& name, const at::Tensor& tensor) {
      const std::byte* memory = memory_of(tensor);
      if (memory == nullptr) return;
      const auto bytes = static_cast<int64_t>(tensor.nbytes());
      count(what, memory, bytes, tensor.is_cpu());
      out.buffers.push_back({name, "", bytes, tensor.is_cpu()});
    };
    if (trainer_ != nullptr) {
      const auto& groups = trainer_->model().update_groups();
      Optimizer& updates = optimizer_of(*trainer_);
      for (size_t i = 0; i < groups.size(); ++i) {
        const std::string group = " of group " + std::to_string(i);
        hold(weights, "weights" + group, groups[i].values);
        if (i < updates.main_weights().size())
          hold(weights, "main weights" + group, updates.main_weights()[i]);
        hold(gradients, "gradients" + group, groups[i].grads);
      }
      for (const Optimizer::State& state : updates.state())
        for (size_t i = 0; i < state.tensors.size(); ++i)
          hold(optimizer, state.name + " of group " + std::to_string(i), state.tensors[i]);
      if (const auto& footprint = trainer_->plan().footprint) {
        const Bytes& plan = footprint->bytes;
        out.kinds[weights].planned = plan.weights;
        out.kinds[gradients].planned = plan.gradients;
        out.kinds[optimizer].planned = plan.optimizer;
        out.kinds[gathered].planned = plan.transient;  // with gradients on their way
        out.kinds[activations].planned = plan.activations;
      }
    }
    for (const detail::HeldMemory& one : detail::held_memory()) {
      const What what = one.what.starts_with("values")                ? weights
                        : one.what.starts_with("gradients of ")       ? gradients
                        : one.what.starts_with("gathered parameters") ? gathered
                                                                      : reduced;
      count(what, one.begin, one.bytes, one.on_host);
      out.buffers.push_back(
          {one.what + shown_unit(one.unit), shown_unit(one.unit), one.bytes, one.on_host});
    }
    // What has a name was counted by it, also where a layer made it.
    std::vector<int64_t> made(units_.size());
    meter_.each_of_units([&](const void* memory, int64_t bytes, int32_t unit) {
      const int64_t fresh = counted.add(memory, bytes);
      made[static_cast<size_t>(unit)] += fresh;
      sum += fresh;
    });
    for (size_t i = 0; i < made.size(); ++i) {
      if (made[i] == 0) continue;
      const std::string unit = shown_unit(units_[i]);
      out.kinds[activations].bytes += made[i];
      out.buffers.push_back({"activations of " + unit, unit, made[i], on_host_});
    }
    out.kinds[rest].bytes = std::max<int64_t>(0, out.live - sum);
    std::ranges::stable_sort(out.buffers, std::ranges::greater(), &Buffer::bytes);
    held_ = std::move(out);
  } catch (...) {  // the error of memory is on its way
  }
  taking_ = false;
}

std::vector<std::string> MemoryReport::tell() const noexcept {
  constexpr size_t kLargest = 3;
  std::vector<std::string> out;
  try {
    std::unique_lock lock(mutex_);
    const std::optional<Held> held = held_;
    lock.unlock();
    if (!held) return out;
    int64_t planned = 0;
    std::string text = "rank " + std::to_string(rank_) + " asked for " +
                       report::human_bytes(held->wanted) + " more than " +
                       report::human_bytes(held->live) + " in tensors: ";
    json::object kinds;
    const char* between = "";
    for (const Kind& kind : held->kinds) {
      if (kind.bytes > 0)
        text += std::exchange(between, ", ") + std::string(kind.name) + " " +
                report::human_bytes(kind.bytes);
      planned += std::max<int64_t>(kind.planned, 0);
      kinds[kind.name] = json::object{
          {"bytes", kind.bytes},
          {"planned", kind.planned < 0 ? json::value(nullptr) : json::value(kind.planned)}};
    }
    if (planned > 0) text += "; the plan says " + report::human_bytes(planned) + " in all";
    out.push_back(std::move(text));
    std::map<std::string, int64_t> units;
    for (const Buffer& buffer : held->buffers)
      if (!buffer.unit.empty()) units[buffer.unit] += buffer.bytes;
    std::vector<std::pair<int64_t, std::string>> largest;
    for (const auto& [unit, bytes] : units) largest.emplace_back(-bytes, unit);
    std::ranges::sort(largest);
    std::string most;
    for (size_t i = 0; i < std::min(largest.size(), kLargest); ++i)
      most +=
          (i == 0 ? "" : ", ") + largest[i].second + " " + report::human_bytes(-largest[i].first);
    if (!most.empty()) out.push_back("its largest units then: " + most);

    json::array buffers;
    for (const Buffer& buffer : held->buffers)
      buffers.push_back(json::object{
          {"what", buffer.name},
          {"unit", buffer.unit.empty() ? json::value(nullptr) : json::value(buffer.unit)},
          {"bytes", buffer.bytes},
          {"on_host", buffer.on_host}});
    const std::string name = "rank_" + std::to_string(rank_);
    base::make_folders(folder_);
    base::write_durably(folder_ / (name + ".json"),
                        report::pretty_json(json::object{{"rank", rank_},
                                                         {"asked_for", held->wanted},
                                                         {"live", held->live},
                                                         {"kinds", std::move(kinds)},
                                                         {"buffers", std::move(buffers)}}));
    std::string where = (folder_ / (name + ".json")).string();
    if (!held->snapshot.empty()) {
      base::write_durably(folder_ / (name + ".snapshot.json"), held->snapshot);
      where += "; what the device's allocator says, in " + name + ".snapshot.json there";
    }
    out.push_back("all of it is in " + where);
  } catch (...) {  // what was said before stays
  }
  return out;
}

}  // namespace meshwright::train
