// Buffers of the sharded units: a pool for the CPU, storages that can be emptied, and the loops
// over raw memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace meshwright::detail {

// Reuses equally sized CPU buffers; elsewhere the device's caching allocator does. Bytes held are
// what one step needed at once.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  explicit BufferPool(at::Device device) : device_(device) {}
  enum class Use : uint8_t { any, gather, reduce };
  // A flat tensor whose memory returns to the pool when the last reference goes.
  at::Tensor take(int64_t count, at::ScalarType type, Use use = Use::any);
  // From now on buffers of that use take turns in these; what is larger, or finds all taken, is as
  // without.
  void rotate(Use use, std::vector<at::Tensor> bytes) {
    turns_[static_cast<size_t>(use)] = std::move(bytes);
  }
  int64_t allocations() const { return allocations_; }
  int64_t live_bytes() const { return live_; }
  int64_t peak_bytes() const { return peak_; }
  void reset_peak() { peak_ = live_; }

 private:
  at::Device device_;
  std::mutex mutex_;
  std::map<size_t, std::vector<at::DataPtr>> free_;
  std::vector<at::Tensor> turns_[3];  // by use
  int64_t allocations_ = 0, live_ = 0, peak_ = 0;
};

// Gives `parameter` a storage of its own with no memory behind it; shape and flags stay, the dtype
// becomes `type`. From then on attach() and detach() lend and take memory; all views, also those
// that autograd saved, follow.
class LentStorage {
 public:
  LentStorage() = default;
  // `message` is what a use without memory throws.
  LentStorage(const at::Tensor& parameter, at::ScalarType type, at::Device device,
              std::string message);
  // Its device is the current one.
  void attach(void* memory);
  void detach();

 private:
  c10::intrusive_ptr<c10::StorageImpl> storage_;
};

// The memory behind a tensor, which may go while its values are not needed; the tensor's views
// follow. A use in between throws `message`.
class ReturnableMemory {
 public:
  ReturnableMemory() = default;
  ReturnableMemory(const at::Tensor& tensor, const std::string& message);
  void give_back();
  void take();  // of any values; nothing where it is there

 private:
  c10::intrusive_ptr<c10::StorageImpl> storage_;
  bool away_ = false;
};

// out = k * in (first) or out += k * in, over float32 CPU memory.
void scaled_add(float* out, const float* in, float k, int64_t count, bool first);
// The same for any dtypes and devices: computed in the wider of the two dtypes and rounded to that
// of `out` once.
void scaled_add(const at::Tensor& out, const at::Tensor& in, double k, bool first);
// Whether the first dtype holds values that the second one rounds. Neither of float16 and bfloat16
// holds all values of the other.
bool wider(at::ScalarType type, at::ScalarType other);
// The sum of squares in blocks of float32, the blocks in double: exact to about 3e-9, where one
// float sum is off by 3e-4.
double sum_of_squares(const at::Tensor& flat);

}  // namespace meshwright::detail
