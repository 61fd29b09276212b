// Live and peak bytes of a rank's tensors, and what held them when memory ended.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/trainer.h"

namespace meshwright::cuda {
struct CudaPart;
}

namespace meshwright::train {

struct MemoryCounter;

// On the CPU the tensors that this thread makes, whoever frees them, on CUDA as its caching
// allocator counts. Counts from construction until destruction; only one per thread at a time. The
// first one on the CPU puts an allocator in front of LibTorch's, which stays.
class MemoryMeter {
 public:
  explicit MemoryMeter(c10::Device device);
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;
  int64_t live() const;
  int64_t peak() const;
  void reset_peak();
  // Hears of an allocation that finds no memory, before that throws, and how much was asked for.
  // On the CPU of this thread's. Empty: nobody.
  void on_exhausted(std::function<void(int64_t wanted)> hear);
  // What the device's allocator has, as JSON; empty on the CPU.
  std::string snapshot() const;

  // Tensors that this thread makes from now on are `unit`'s, until it says another; kNoUnit:
  // nobody's. Gives what it was.
  static constexpr int32_t kNoUnit = -1;
  static int32_t unit_is(int32_t unit);
  // Visits the memory that is held and is some unit's.
  void each_of_units(
      const std::function<void(const void* begin, int64_t bytes, int32_t unit)>& visit) const;

 private:
  c10::Device device_;
  const cuda::CudaPart* cuda_;                      // nullptr: on the CPU
  std::shared_ptr<MemoryCounter> counter_, outer_;  // of the CPU; outer_: what this one stands for
};

// What held a rank's memory when it ended: found out where an allocation fails, for what a step
// holds is gone by the time that somebody catches the exception.
class MemoryReport {
 public:
  // `meter` and `world` outlive this.
  MemoryReport(MemoryMeter& meter, World& world, const std::filesystem::path& run);
  ~MemoryReport();
  MemoryReport(const MemoryReport&) = delete;
  MemoryReport& operator=(const MemoryReport&) = delete;
  // From then on it knows weights, gradients, the optimizer's state and which layer made what is
  // kept for the backward pass: between steps, once. `trainer` outlives this, and this `model`.
  void model_is(Trainer& trainer, torch::nn::Module& model);
  // Notes for the user, where an allocation has failed. Writes memory/rank_N.json and what the
  // device's allocator says, and names them; what cannot be written is left out.
  std::vector<std::string> tell() const noexcept;

 private:
  // Bytes of kinds of tensors. Each byte counts once.
  struct Kind {
    const char* name;
    int64_t bytes = 0, planned = -1;  // -1: the plan does not say
  };
  struct Buffer {
    std::string name, unit;
    int64_t bytes;
    bool on_host;
  };
  struct Held {
    int64_t wanted = 0, live = 0;
    std::vector<Kind> kinds;
    std::vector<Buffer> buffers;  // that have names, largest first
    std::string snapshot;         // of the device's allocator, JSON; empty: there is none
  };
  void take(int64_t wanted) noexcept;
  MemoryMeter& meter_;
  const int64_t rank_;
  const bool on_host_;
  const std::filesystem::path folder_;
  Trainer* trainer_ = nullptr;
  std::vector<std::string> units_;  // by the numbers of the meter's units
  std::atomic<bool> taking_ = false;
  mutable std::mutex mutex_;
  std::optional<Held> held_;  // nullopt: no allocation has failed
};

}  // namespace meshwright::train
