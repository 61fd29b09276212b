// Copies between parts of flat tensors.
#pragma once

#include <ATen/ops/_foreach_copy.h>

#include <cstring>
#include <vector>

#include "buffers.h"

namespace meshwright::detail {

// Copies to[at .. at + count) = from[begin ..) * scale, cast when the dtypes differ. On a device
// all of them together, in flush().
class Copies {
 public:
  explicit Copies(double scale = 1) : scale_(scale) {}
  void add(const at::Tensor& to, int64_t at, const at::Tensor& from, int64_t begin, int64_t count) {
    if (count == 0) return;
    if (scale_ != 1) {
      scaled_add(to.narrow(0, at, count), from.narrow(0, begin, count), scale_, /*first=*/true);
    } else if (to.is_cpu() && from.is_cpu() && to.scalar_type() == from.scalar_type()) {
      size_t each = to.element_size();
      std::memcpy(
          static_cast<char*>(to.mutable_data_ptr()) + static_cast<size_t>(at) * each,
          static_cast<const char*>(from.const_data_ptr()) + static_cast<size_t>(begin) * each,
          static_cast<size_t>(count) * each);
    } else if (to.is_cpu() || from.is_cpu()) {
      to.narrow(0, at, count).copy_(from.narrow(0, begin, count));
    } else {
      to_.push_back(to.narrow(0, at, count));
      from_.push_back(from.narrow(0, begin, count));
    }
  }
  void flush() {
    if (!to_.empty()) at::_foreach_copy_(to_, from_);
    to_.clear();
    from_.clear();
  }

 private:
  double scale_;
  std::vector<at::Tensor> to_, from_;
};

inline void copy(const at::Tensor& to, int64_t at, const at::Tensor& from, int64_t begin,
                 int64_t count) {
  Copies one;
  one.add(to, at, from, begin, count);
  one.flush();
}

inline void clear(const at::Tensor& to, int64_t at, int64_t count) {
  if (count == 0) return;
  if (to.is_cpu())
    std::memset(
        static_cast<char*>(to.mutable_data_ptr()) + static_cast<size_t>(at) * to.element_size(), 0,
        static_cast<size_t>(count) * to.element_size());
  else
    to.narrow(0, at, count).zero_();
}

}  // namespace meshwright::detail
