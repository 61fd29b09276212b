// What held a rank's memory when it ended: found out where an allocation fails, for what a step
// holds is gone by the time that somebody catches the exception.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/train/step/memory.h"
#include "meshwright/trainer.h"

namespace torch::nn {
class Module;
}

namespace meshwright::train {

class MemoryReport {
 public:
  // Bytes of kinds of tensors. Each byte counts once.
  struct Kind {
    const char* name;
    int64_t bytes = 0, planned = -1;  // -1: the plan does not say
  };
  struct Held {
    int64_t wanted = 0, live = 0;
    std::vector<Kind> kinds;
    struct Buffer {
      std::string name, unit;
      int64_t bytes;
      bool on_host;
    };
    std::vector<Buffer> buffers;  // that have names, largest first
    std::string snapshot;         // of the device's allocator, JSON; empty: there is none
  };

  // `meter` and `world` outlive this.
  MemoryReport(MemoryMeter& meter, World& world, const std::filesystem::path& run);
  ~MemoryReport();
  MemoryReport(const MemoryReport&) = delete;
  MemoryReport& operator=(const MemoryReport&) = delete;
  // From then on it knows weights, gradients, the optimizer's state and which layer made what is
  // kept for the backward pass: between steps, once. `trainer` outlives this, and this `model`.
  void model_is(Trainer& trainer, torch::nn::Module& model);
  // What was found when an allocation failed; nullopt: none has.
  std::optional<Held> held() const;
  // Notes for the user. Writes memory/rank_N.json and what the device's allocator says, and
  // names them; what cannot be written is left out.
  std::vector<std::string> tell() const noexcept;

 private:
  void take(int64_t wanted) noexcept;
  MemoryMeter& meter_;
  const int64_t rank_;
  const bool on_host_;
  const std::filesystem::path folder_;
  Trainer* trainer_ = nullptr;
  std::vector<std::string> units_;  // by the numbers of memory_'s units
  std::atomic<bool> taking_ = false;
  mutable std::mutex mutex_;
  std::optional<Held> held_;
};

}  // namespace meshwright::train
