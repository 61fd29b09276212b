// Parts of parameters as ranks hold them, put beside whole ones. Not for use outside the kit.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "meshwright/outline.h"
#include "meshwright/parallel/parallel.h"
#include "sdk/kit/conformance/training/reference.h"

namespace meshwright::conformance {

// The elements of a whole tensor that a region has, in its order: int64.
at::Tensor positions_in(const Region& region, const std::vector<int64_t>& shape);
// They themselves, in the shape that the region is stored in.
at::Tensor cut(const at::Tensor& whole, const Region& region);

// "element [2, 3]" of a tensor of that shape.
std::string element_text(int64_t position, const std::vector<int64_t>& shape);
std::string number_text(double value);
std::string shape_text(at::IntArrayRef shape);

// Where two tensors of one shape differ most, if by more than `tolerance`; NaN is a difference.
struct Difference {
  int64_t at = 0;  // in the flattened tensor
  double found = 0, expected = 0;
};
std::optional<Difference> difference(const at::Tensor& found, const at::Tensor& expected,
                                     double tolerance);
// "0.5 at element [2, 3], ", of a part at the place that it has in the whole.
std::string text_of(const Difference& difference, const Region& region,
                    const std::vector<int64_t>& shape);

// Where `local` lies among the values that an optimizer updates; nullopt: it is no view of them.
struct Place {
  size_t group = 0;
  int64_t offset = 0;
};
std::optional<Place> place_of(const at::Tensor& local,
                              const std::vector<FlatParameterGroup>& groups);
// The elements of a group's tensor (a gradient, a state) that belong to `local`.
at::Tensor alike(const at::Tensor& flat, const Place& place, const at::Tensor& local);

// "the state momentum of lm_head.weight"
std::string key_of(const StateTensor& kept);

// What one rank would save of one parameter, or of one of state_tensors(), which has no momentum.
struct SavedPart {
  std::string name;
  std::vector<int64_t> shape;
  Region region;
  at::Tensor values, momentum;
};
using SavedParts = std::vector<std::vector<SavedPart>>;  // by rank

// Puts them together as a checkpoint does; what stands in the way of that goes to `problems`.
TrainingState assemble(const SavedParts& parts, const TrainingState& expected,
                       std::vector<std::string>& problems);

}  // namespace meshwright::conformance
