// How long a thread has waited for other ranks, for whoever measures a step.
#pragma once

#include <cstdint>

#include "meshwright/export.h"

namespace meshwright::detail {

// Nanoseconds that this thread has spent inside of collectives, since it began: putting down what
// it sends, waiting, adding up what came. What happens while it computes does not count. Nothing of
// collectives on a device, whose host does not wait.
MESHWRIGHT_API int64_t waited_ns() noexcept;

// While one of these lives, this thread waits.
class MESHWRIGHT_API Waiting {
 public:
  Waiting() noexcept;
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  int64_t since_;
};

}  // namespace meshwright::detail
