// Buffers of the sharded units: a pool for the CPU, storages that can be emptied, and the loops
// over raw memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_copy.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
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

// Copies between parts of flat tensors.

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

// Says what lies in a buffer: to whoever asks what holds memory when it ends
// (sdk/base/held_memory.h), and to what stands in front of the device's libraries
// (tests/fake_device).

// `what` is a literal. The name lasts as long as the tensor's memory, or until another tensor of
// the unit has it. unit empty: the root.
void name_memory(const at::Tensor& tensor, const char* what, const std::string& unit);
// The same for what stands in front of the device's libraries alone: of many tensors of one name,
// of which the others ask for the last.
void name_for_checks(const at::Tensor& tensor, const char* what, const std::string& unit);

// Copies from a device into pinned memory of the host, beside what the device computes.

class HostCopies {
 public:
  // The host must not touch `to` until wait(). `from` is kept as long as it is read.
  void add(const at::Tensor& to, const at::Tensor& from);
  // The device's current stream waits for all: the host has them once it has waited for that, and
  // what is launched there may read them. Not inlined, like let_go().
  [[gnu::noinline]] void order();
  // The host waits until all are there.
  void wait();

 private:
  struct Copy {
    at::Tensor from;  // undefined: the stream that computes waits for the copy
    c10::Event done;
  };
  // Not inlined: the fake device tells waits apart by the functions that they are in.
  [[gnu::noinline]] void let_go(const c10::Stream& computing);
  std::optional<c10::Stream> stream_;
  std::deque<Copy> under_way_;
};

}  // namespace meshwright::detail
