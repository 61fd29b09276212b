// When the streams of a device come to what a trace has marked there: events, read when they are
// over, so that the host waits for none. Not thread-safe.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace meshwright::detail {

class DeviceMoments {
 public:
  explicit DeviceMoments(c10::Device device) : device_(device) {}
  // Of the thread's current stream; `now`: microseconds of the host's clock. -1, -2, ...
  int64_t mark(int64_t now);
  // By the host's clock. Waits for all that were marked.
  int64_t time_of(int64_t moment);

 private:
  struct Pending {
    c10::Event event;
    int64_t marked;
  };
  void read_over();
  c10::Device device_;
  std::deque<Pending> pending_;
  std::vector<int64_t> times_;  // of the first ones
  std::optional<c10::Event> base_;
  double base_time_ = 0;  // by the host's clock, as far as is known
};

}  // namespace meshwright::detail
