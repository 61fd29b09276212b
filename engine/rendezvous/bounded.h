// A time limit for calls that have none.
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>

namespace meshwright::rendezvous {

// The call did not come back.
struct NoAnswer {};

// What `call` returns or throws; NoAnswer when it takes longer. LibTorch's store waits for ever where its server is there and silent (a
// stopped process, another program on the port), and nothing wakes it up: such a call stays behind in its thread until the process ends.
// So `call` must own all that it uses.
template <class F>
auto bounded(std::chrono::milliseconds limit, F call) -> std::invoke_result_t<F> {
  auto task = std::make_shared<std::packaged_task<std::invoke_result_t<F>()>>(std::move(call));
  auto result = task->get_future();
  std::thread thread([task] { (*task)(); });
  if (result.wait_for(limit) != std::future_status::ready) {
    thread.detach();
    throw NoAnswer();
  }
  thread.join();
  return result.get();
}

}  // namespace meshwright::rendezvous
