// A time limit for calls that have none.
#pragma once

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>

namespace meshwright::rendezvous {

// The call did not come back.
struct NoAnswer {};

// What `call` returns or throws; NoAnswer when it takes longer. LibTorch's store waits for ever
// where its server is there and silent (a stopped process, another program on the port), and
// nothing wakes it up: such a call stays behind in its thread until the process ends. So `call`
// must own all that it uses.
//
// `meanwhile` is called after every half second, until the limit is over; what it throws ends the
// wait in the same way.
template <class F, class G>
auto bounded(std::chrono::milliseconds limit, F call, G meanwhile) -> std::invoke_result_t<F> {
  auto task = std::make_shared<std::packaged_task<std::invoke_result_t<F>()>>(std::move(call));
  auto result = task->get_future();
  std::thread thread([task] { (*task)(); });
  auto end = std::chrono::steady_clock::now() + limit;
  for (;;) {
    // From now on: the last call may have taken long.
    const auto next =
        std::min(end, std::chrono::steady_clock::now() + std::chrono::milliseconds(500));
    if (result.wait_until(next) == std::future_status::ready) break;
    try {
      if (next == end) throw NoAnswer();
      meanwhile();
    } catch (...) {
      thread.detach();
      throw;
    }
  }
  thread.join();
  return result.get();
}

template <class F>
auto bounded(std::chrono::milliseconds limit, F call) -> std::invoke_result_t<F> {
  return bounded(limit, std::move(call), [] {});
}

}  // namespace meshwright::rendezvous
