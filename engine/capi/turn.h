// One run at a time.
#pragma once

#include <atomic>

#include "engine/capi/guard.h"

namespace meshwright::capi {

// LibTorch's generator and its threads are the process's: one run at a time.
class Turn {
 public:
  Turn() {
    if (taken().exchange(true))
      throw misuse("another run, or meshwright_generate(), is under way in this process");
  }
  ~Turn() { taken() = false; }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  static std::atomic<bool>& taken() {
    static std::atomic<bool> one = false;
    return one;
  }
};

}  // namespace meshwright::capi
