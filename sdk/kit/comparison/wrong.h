// Tensors of many names that are wrong, those that are so in the same way together.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sdk/kit/comparison/diagnosis.h"

namespace meshwright::comparison {

struct Wrong {
  Pattern pattern;
  std::vector<std::string> names;
};

// By name: what one process has, and what ranks have of it. A difference counts that is more than
// `tolerance` of the largest element of its tensor, or of a thousandth of the largest of all.
// Tensors that no rank has a piece of go to `missing`.
std::vector<Wrong> wrong_tensors(const std::map<std::string, at::Tensor>& truth,
                                 const std::map<std::string, std::vector<Piece>>& pieces,
                                 const std::vector<std::vector<Axis>>& axes, int64_t accumulation,
                                 double tolerance, std::vector<std::string>& missing);

}  // namespace meshwright::comparison
