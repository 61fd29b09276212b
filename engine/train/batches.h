// What a step reads: rows of a dataset in the sampler's order, on the device.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>

#include "engine/data/dataset.h"

namespace meshwright::train {

// The samples of one micro-batch as inputs and targets.
class Batches {
 public:
  // `in_flight`: what was read is still used when the next rows are read, as in a pipeline.
  Batches(const data::Dataset& data, data::Sampler sampler, int64_t rows, at::Device device,
          bool in_flight = false)
      : data_(data),
        sampler_(sampler),
        rows_(rows),
        device_(device),
        in_flight_(in_flight),
        ids_(at::empty({rows, data.seq_len() + 1}, at::kLong)) {}
  // Rows at positions [first, first + rows).
  at::Tensor read(int64_t first) {
    // The copy to a device goes on while the host reads the next rows; the allocator of pinned
    // memory keeps these until then.
    if (!device_.is_cpu())
      ids_ = at::empty(ids_.sizes(), ids_.options().pinned_memory(true));
    else if (in_flight_)
      ids_ = at::empty(ids_.sizes(), ids_.options());
    for (int64_t row = 0; row < rows_; ++row)
      data_.read(sampler_.at(first + row),
                 ids_.mutable_data_ptr<int64_t>() + row * (data_.seq_len() + 1));
    return device_.is_cpu() ? ids_ : ids_.to(device_, /*non_blocking=*/true);
  }

 private:
  const data::Dataset& data_;
  data::Sampler sampler_;
  int64_t rows_;
  at::Device device_;
  bool in_flight_;
  at::Tensor ids_;
};

}  // namespace meshwright::train
