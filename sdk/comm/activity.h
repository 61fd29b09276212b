// What a thread does while it waits for other ranks, for the messages of errors.
#pragma once

#include <string>
#include <utility>

namespace meshwright::detail {

// Says, while it lives, what the collectives of this thread are for. `what` is not copied and must
// outlive it.
class Activity {
 public:
  Activity(const std::string& what, const char* direction)
      : what_(what), direction_(direction), outer_(std::exchange(innermost(), this)) {}
  ~Activity() { innermost() = outer_; }
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

  // "attention of model.layers.3.self_attn.core, forward"; empty where nobody said anything.
  static std::string text() {
    const Activity* mine = innermost();
    return mine == nullptr ? "" : mine->what_ + ", " + mine->direction_;
  }

 private:
  static const Activity*& innermost() {
    static thread_local const Activity* of_thread = nullptr;
    return of_thread;
  }
  const std::string& what_;
  const char* direction_;
  const Activity* outer_;
};

}  // namespace meshwright::detail
