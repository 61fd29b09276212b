// The bytes of tensors on the host, wherever the tensors lie.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace meshwright::train {

// Reads tensors one after the other. Those on a device come in batches through pinned memory, and
// the host waits once for each batch: copied one by one it would wait for every tensor.
class HostReads {
 public:
  // Of a batch, and so the memory that reading takes. A device copies as much in milliseconds, so
  // that larger ones would save no time.
  static constexpr int64_t kBatchBytes = int64_t{64} << 20;
  using Take = std::function<void(std::span<const std::byte>)>;

  // Contiguous tensors, on the host or on one device.
  explicit HostReads(std::vector<at::Tensor> tensors, int64_t batch_bytes = kBatchBytes);
  // The bytes of the next tensor: all of them where they lie, if that is on the host, else in
  // pieces as batches end. A span is valid during the call.
  void next(const Take& take);

 private:
  // Not inlined: the fake device tells waits apart by the functions that they are in.
  [[gnu::noinline]] void copy_batch();

  std::vector<at::Tensor> tensors_;
  size_t next_ = 0;     // to be read
  size_t copying_ = 0;  // to be copied
  int64_t copied_ = 0;  // bytes of that one
  at::Tensor batch_;    // pinned
  int64_t room_ = 0;    // bytes of the batch
  int64_t filled_ = 0;  // of these, copied
  int64_t given_ = 0;   // of those, read
};

}  // namespace meshwright::train
