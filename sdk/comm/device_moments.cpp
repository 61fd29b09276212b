#include "device_moments.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

namespace meshwright::detail {

namespace {
constexpr size_t kKept = 256;  // events that nobody asks for yet: those of some layers
}

int64_t DeviceMoments::mark(int64_t now) {
  c10::impl::VirtualGuardImpl guard(device_.type());
  c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(guard.getStream(device_));
  pending_.push_back({std::move(event), now});
  if (pending_.size() > kKept) read_over();
  return -static_cast<int64_t>(times_.size() + pending_.size());
}

int64_t DeviceMoments::time_of(int64_t moment) {
  if (!pending_.empty()) {
    for (const Pending& one : pending_) one.event.synchronize();
    read_over();
  }
  return times_.at(static_cast<size_t>(-moment - 1));
}

// The two clocks meet where a stream had nothing else to do: no event comes before the host has
// marked it, and the latest base that this allows is the true one.
void DeviceMoments::read_over() {
  size_t over = 0;
  while (over < pending_.size() && pending_[over].event.query()) ++over;
  if (over == 0) return;
  std::vector<double> after_base(over, 0.0);
  for (size_t i = 0; i < over; ++i)
    if (base_) after_base[i] = base_->elapsedTime(pending_[i].event) * 1000;
  if (!base_)
    for (size_t i = 1; i < over; ++i)
      after_base[i] = pending_[0].event.elapsedTime(pending_[i].event) * 1000;
  for (size_t i = 0; i < over; ++i)
    base_time_ = std::max(base_time_, static_cast<double>(pending_[i].marked) - after_base[i]);
  for (double after : after_base) times_.push_back(static_cast<int64_t>(base_time_ + after));
  base_time_ += after_base[over - 1];  // events tell short times best
  base_.emplace(std::move(pending_[over - 1].event));
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(over));
}

}  // namespace meshwright::detail
