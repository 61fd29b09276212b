// Where a layout's numbers turned wrong: the same finder as `meshwright prove` has, over the kit's
// model. Not for use outside the kit.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sdk/kit/comparison/diagnosis.h"
#include "sdk/kit/conformance/training/model.h"

namespace meshwright::conformance {

// What one rank leaves behind of a run, right or wrong.
struct Evidence {
  comparison::RankSeen seen;  // of the first step; a micro-batch goes by its first row
  std::vector<std::vector<int64_t>> micro_batches;  // their rows
  double weight = 1;                                // of a sum over targets
  // Of each step, after they were scaled and clipped; by parameter.
  std::vector<std::map<std::string, comparison::Piece>> gradients;
};

// One line for the first module in which the ranks part from a plain loop, and one for the
// pattern of most of the wrong gradients of the first step that has any, with what to do about it.
// `tolerance`: relative.
std::vector<std::string> place_of_fault(const std::vector<Evidence>& ranks,
                                        const Reference& reference, double tolerance);

}  // namespace meshwright::conformance
