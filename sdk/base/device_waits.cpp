#include "device_waits.h"

#include <chrono>

namespace meshwright::detail {

namespace {

thread_local int64_t waited_of_thread = 0;

int64_t now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

int64_t waited_ns() noexcept { return waited_of_thread; }

Waiting::Waiting() noexcept : since_(now_ns()) {}
Waiting::~Waiting() { waited_of_thread += now_ns() - since_; }

}  // namespace meshwright::detail
