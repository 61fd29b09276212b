#include "host_copies.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace meshwright::detail {

namespace {
// So that slow copies do not pile up what they read.
constexpr size_t kAtOnce = 2;
}  // namespace

void HostCopies::add(const at::Tensor& to, const at::Tensor& from) {
  const at::Device device = from.device();
  c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream computing = guard.getStream(device);
  if (!stream_) stream_ = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/false);
  if (under_way_.size() == kAtOnce) let_go(computing);
  c10::Event written(device.type()), done(device.type());
  written.record(computing);
  written.block(*stream_);
  {
    c10::StreamGuard beside(*stream_);
    to.copy_(from, /*non_blocking=*/true);
  }
  done.record(*stream_);
  under_way_.push_back({from, std::move(done)});
}

void HostCopies::let_go(const c10::Stream& computing) {
  under_way_.front().done.block(computing);  // whose memory it may be next
  under_way_.pop_front();
}

void HostCopies::order() {
  if (under_way_.empty()) return;
  const at::Device device = stream_->device();
  // The last one comes after all others.
  under_way_.back().done.block(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  for (Copy& copy : under_way_) copy.from = at::Tensor();
}

void HostCopies::wait() {
  if (!under_way_.empty()) under_way_.back().done.synchronize();
  under_way_.clear();
}

}  // namespace meshwright::detail
