// Copies from a device into pinned memory of the host, beside what the device computes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <deque>
#include <optional>

namespace meshwright::detail {

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
