// Waiting for what nobody announces.
#pragma once

#include <chrono>
#include <thread>

namespace meshwright::base {

// Asks `done` again and again, a `pause` apart, until it says yes or the time is over: what it said
// last. It is asked once at least.
template <class Done>
bool wait_until(std::chrono::steady_clock::time_point end, std::chrono::milliseconds pause,
                Done&& done) {
  while (!done()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

}  // namespace meshwright::base
