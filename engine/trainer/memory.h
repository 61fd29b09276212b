// Live and peak bytes of a rank's tensors: on the CPU as this thread allocates and frees them, on
// CUDA as its caching allocator counts.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

namespace meshwright::train {

// Counts from construction until destruction; only one per thread at a time.
class MemoryMeter {
 public:
  explicit MemoryMeter(c10::Device device);
  ~MemoryMeter();
  int64_t live() const;
  int64_t peak() const;
  void reset_peak();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshwright::train
