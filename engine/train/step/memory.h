// Live and peak bytes of a rank's tensors: on the CPU those that this thread makes, whoever frees
// them, on CUDA as its caching allocator counts.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace meshwright::train {

// Counts from construction until destruction; only one per thread at a time. The first one on the
// CPU puts an allocator in front of LibTorch's, which stays.
class MemoryMeter {
 public:
  explicit MemoryMeter(c10::Device device);
  ~MemoryMeter();
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
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshwright::train
