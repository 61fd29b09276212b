// What a thread does while it waits for other ranks, for the messages of errors.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "meshwright/export.h"

namespace meshwright::detail {

struct Doing {
  std::string text;    // "attention of model.layers.3.self_attn.core, forward"; empty: nobody said
  int64_t order = -1;  // of the step around it among what all ranks do; -1: there is no such order
  std::string step;    // that step: "3F5 of the pipeline, which computes"
};

// Says, while it lives, what the collectives of this thread are for. `what` is not copied and must
// outlive it. `order`: its place among what all ranks do; -1: that of the activity around it.
class MESHWRIGHT_API Activity {
 public:
  Activity(const std::string& what, const char* direction, int64_t order = -1)
      : what_(what),
        direction_(direction),
        outer_(std::exchange(innermost(), this)),
        order_(order) {}
  ~Activity() { innermost() = outer_; }
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

  // Of this thread.
  static Doing now() {
    Doing out;
    const Activity* mine = innermost();
    if (mine != nullptr) out.text = mine->text();
    while (mine != nullptr && mine->order_ < 0) mine = mine->outer_;
    if (mine != nullptr) out.order = mine->order_, out.step = mine->text();
    return out;
  }

 private:
  std::string text() const { return what_ + ", " + direction_; }
  static const Activity*& innermost() {
    static thread_local const Activity* of_thread = nullptr;
    return of_thread;
  }
  const std::string& what_;
  const char* direction_;
  const Activity* outer_;
  int64_t order_;
};

}  // namespace meshwright::detail
