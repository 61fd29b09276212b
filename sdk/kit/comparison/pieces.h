// Parts of tensors as ranks hold them, put beside whole ones and put together again. Not for use
// outside the kit and the proof of a job.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/region.h"

namespace meshwright::comparison {

// Of its elements without their signs, infinity where one is not a number; 0: it has none.
double largest(const at::Tensor& t);
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

// A tensor put together from the parts that ranks hold of it.
class Assembly {
 public:
  Assembly(const std::vector<int64_t>& shape, const at::TensorOptions& options);

  // An element that two ranks hold, and not alike.
  struct Apart {
    int64_t at = 0;  // in the flattened whole
    double mine = 0;
    int64_t other = 0;  // the other rank
    double theirs = 0;
    int64_t count = 0, of = 0;  // so many of the part's elements are apart
  };
  // The first element that contradicts what another rank holds, by more than `rounding` (0: by a
  // bit); the part is not taken then.
  std::optional<Apart> add(int64_t rank, const Region& region, const at::Tensor& values,
                           double rounding = 0);
  // NaN where no rank holds anything.
  at::Tensor whole() const;
  // By element, flattened: the rank that was added last, -1: none.
  const at::Tensor& owners() const { return owner_; }
  const std::vector<int64_t>& shape() const { return shape_; }

 private:
  std::vector<int64_t> shape_;
  at::Tensor whole_, owner_;
};

}  // namespace meshwright::comparison
