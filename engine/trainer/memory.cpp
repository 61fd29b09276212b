#include "engine/trainer/memory.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>

#include "engine/device/device.h"

namespace meshwright::train {

struct MemoryMeter::Impl {
  struct Reporter : c10::MemoryReportingInfoBase {
    int64_t live = 0, peak = 0;
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
      if (!device.is_cpu()) return;
      live += bytes;
      peak = std::max(peak, live);
    }
    bool memoryProfilingEnabled() const override { return true; }
  };

  explicit Impl(c10::Device d) : device(d), cuda(d.is_cuda() ? device::cuda_part() : nullptr) {}
  c10::Device device;
  const cuda::CudaPart* cuda;
  std::shared_ptr<Reporter> reporter = std::make_shared<Reporter>();
  c10::DebugInfoGuard guard{c10::DebugInfoKind::PROFILER_STATE, reporter};
};

MemoryMeter::MemoryMeter(c10::Device device) : impl_(std::make_unique<Impl>(device)) {}
MemoryMeter::~MemoryMeter() = default;
int64_t MemoryMeter::live() const {
  return impl_->cuda ? impl_->cuda->live_bytes(impl_->device.index()) : impl_->reporter->live;
}
int64_t MemoryMeter::peak() const {
  return impl_->cuda ? impl_->cuda->peak_bytes(impl_->device.index()) : impl_->reporter->peak;
}
void MemoryMeter::reset_peak() {
  if (impl_->cuda)
    impl_->cuda->reset_peak(impl_->device.index());
  else
    impl_->reporter->peak = impl_->reporter->live;
}

}  // namespace meshwright::train
