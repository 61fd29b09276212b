// Dropout of what adapters read (lora.dropout), drawn element by element: whether one is dropped
// follows from the seed, the step, the module, the sample's place in the step, its position and its
// column, so that every layout drops the same ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace meshwright::train {

// The micro-batch that a forward is of.
struct MicroBatchPlace {
  int64_t step = 0;
  int64_t first_row = 0, rows = 1;  // its samples, among those of the step
};

class AdapterDropout {
 public:
  // `tensor_rank`: of this rank in its tensor-parallel group; it may have a part of the columns.
  AdapterDropout(double rate, uint64_t seed, int64_t tensor_rank)
      : rate_(rate), seed_(seed), tensor_rank_(tensor_rank) {}
  double rate() const { return rate_; }
  // Of the forwards from now on. What recomputes under activation checkpointing keeps the place of
  // its first run.
  void begin(const MicroBatchPlace& place) { place_ = place; }
  // x, the input of a Linear of so many columns in all, with zeros for what is dropped; the rest is
  // not scaled up. Drawn on the host, whatever x's device. Backward keeps one byte an element.
  at::Tensor apply(const at::Tensor& x, std::string_view module, int64_t columns) const;

 private:
  double rate_;
  uint64_t seed_;
  int64_t tensor_rank_;
  MicroBatchPlace place_;
};

}  // namespace meshwright::train
