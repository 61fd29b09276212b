// What differs between two checkpoints or folders of weights.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/checkpoint/source.h"

namespace meshwright::checkpoint {

struct TensorDifference {
  std::string state, name;  // as SourceTensor
  DType dtype_a = DType::float32, dtype_b = DType::float32;
  std::vector<int64_t> shape_a, shape_b;
  int64_t elements = 0;
  // Only where the shapes are equal: elements with other bits, or, between two dtypes, another
  // value.
  int64_t differing = 0;
  double max_abs = 0;   // |a - b|; infinite where one is not finite and the other is something else
  double relative = 0;  // max_abs by the largest |value| among the elements that differ
  int64_t worst = -1;   // the element of max_abs, in row-major order
  bool same_shape() const { return shape_a == shape_b; }
  bool equal() const { return same_shape() && dtype_a == dtype_b && differing == 0; }
};

struct Difference {
  std::vector<TensorDifference> both;       // in the first one's order
  std::vector<std::string> only_a, only_b;  // as SourceTensor::text
  bool optimizer_compared = false;          // both have one
  bool optimizer_a = false, optimizer_b = false;
  bool equal() const;
};

// Compares by name, in bounded memory. `progress` hears the bytes of `a` that are done,
// diff_bytes() in all. Throws what Source::read throws.
Difference compare(Source& a, Source& b, const std::function<void(int64_t bytes)>& progress);
int64_t diff_bytes(const Source& a, const Source& b);

}  // namespace meshwright::checkpoint
