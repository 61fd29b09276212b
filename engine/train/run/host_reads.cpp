#include "engine/train/run/host_reads.h"

#include <ATen/ops/empty.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

namespace meshwright::train {

using at::Tensor;

namespace {

int64_t bytes_on_device(const Tensor& tensor) {
  return tensor.is_cpu() ? 0 : static_cast<int64_t>(tensor.nbytes());
}

}  // namespace

HostReads::HostReads(std::vector<Tensor> tensors, int64_t batch_bytes)
    : tensors_(std::move(tensors)) {
  for (const Tensor& tensor : tensors_) room_ += bytes_on_device(tensor);
  room_ = std::min(room_, batch_bytes);
}

void HostReads::next(const Take& take) {
  const Tensor& values = tensors_[next_++];
  if (values.is_cpu())
    return take(std::span(static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()));
  for (int64_t left = bytes_on_device(values); left > 0;) {
    if (given_ == filled_) copy_batch();
    const int64_t count = std::min(left, filled_ - given_);
    take(std::span(static_cast<const std::byte*>(batch_.const_data_ptr()) + given_,
                   static_cast<size_t>(count)));
    given_ += count;
    left -= count;
  }
}

// All of the batch before has been read.
void HostReads::copy_batch() {
  if (!batch_.defined())
    batch_ = at::empty({room_}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  const at::Device device = tensors_[next_ - 1].device();
  given_ = filled_ = 0;
  while (copying_ < tensors_.size() && filled_ < room_) {
    const Tensor& from = tensors_[copying_];
    const int64_t bytes = bytes_on_device(from);
    const int64_t count = std::min(bytes - copied_, room_ - filled_);
    if (count > 0)
      batch_.narrow(0, filled_, count)
          .copy_(from.view({-1}).view(at::kByte).narrow(0, copied_, count), /*non_blocking=*/true);
    filled_ += count;
    copied_ += count;
    if (copied_ < bytes) continue;
    ++copying_;
    copied_ = 0;
  }
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

}  // namespace meshwright::train
