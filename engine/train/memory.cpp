#include "engine/train/memory.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>

namespace meshwright::train {

namespace {

struct Reporter : c10::MemoryReportingInfoBase {
  int64_t live = 0, peak = 0;
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    live += bytes;
    peak = std::max(peak, live);
  }
  bool memoryProfilingEnabled() const override { return true; }
};

}  // namespace

struct MemoryMeter::Impl {
  std::shared_ptr<Reporter> reporter = std::make_shared<Reporter>();
  c10::DebugInfoGuard guard{c10::DebugInfoKind::PROFILER_STATE, reporter};
};

MemoryMeter::MemoryMeter() : impl_(std::make_unique<Impl>()) {}
MemoryMeter::~MemoryMeter() = default;
int64_t MemoryMeter::live() const { return impl_->reporter->live; }
int64_t MemoryMeter::peak() const { return impl_->reporter->peak; }
void MemoryMeter::reset_peak() { impl_->reporter->peak = impl_->reporter->live; }

}  // namespace meshwright::train
