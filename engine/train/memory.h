// Live and peak bytes of tensors on the CPU, as this thread allocates and frees them.
#pragma once

#include <cstdint>
#include <memory>

namespace meshwright::train {

// Counts from construction until destruction; one at a time a thread. On CUDA the caching allocator's own peak is the figure instead.
class MemoryMeter {
 public:
  MemoryMeter();
  ~MemoryMeter();
  int64_t live() const;
  int64_t peak() const;
  void reset_peak();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshwright::train
