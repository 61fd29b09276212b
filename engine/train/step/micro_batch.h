// What a language model reads in one micro-batch, whichever data set it is from.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace meshwright::train {

// Tensors [rows, length], on the device. Undefined documents and positions: each row is one
// document; undefined weights: all are 1.
struct MicroBatch {
  at::Tensor tokens, targets;  // int64; targets without a loss are -100
  at::Tensor documents = {};   // int32, not descending along a row
  at::Tensor positions = {};   // int64, from 0 in each document
  at::Tensor weights = {};     // float32, of the targets in the loss
  // Targets, weights and documents on the host, for counting without a wait for the device. nullptr
  // targets: every position has one.
  const int64_t* host_targets = nullptr;
  const float* host_weights = nullptr;
  const int32_t* host_documents = nullptr;
  std::shared_ptr<const void> host = {};  // their memory
  std::vector<int64_t> ends = {};         // where what pads each row begins; empty: nothing pads

  int64_t rows() const { return tokens.size(0); }
  int64_t length() const { return tokens.size(1); }
};

// Of ids [rows, length + 1]: each position's target is the next id.
inline MicroBatch next_tokens(const at::Tensor& ids) {
  const int64_t length = ids.size(1) - 1;
  return {.tokens = ids.narrow(1, 0, length), .targets = ids.narrow(1, 1, length)};
}

}  // namespace meshwright::train
