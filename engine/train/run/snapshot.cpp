#include "engine/train/run/snapshot.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "sdk/base/files/clock.h"

namespace meshwright::train {

void Snapshot::prepare(std::vector<RankFile>& files) {
  size_t count = 0;
  for (const RankFile& file : files) count += file.entries.size();
  copies_.resize(count);
  originals_.assign(count, at::Tensor());
  copied_.reset();
  std::optional<at::Device> device;
  size_t i = 0;
  for (RankFile& file : files)
    for (FileEntry& entry : file.entries) {
      at::Tensor &copy = copies_[i], values = entry.values.view({-1});
      if (!copy.defined() || copy.numel() != values.numel() ||
          copy.scalar_type() != values.scalar_type())
        copy = at::empty({values.numel()},
                         values.options().device(at::kCPU).pinned_memory(values.is_cuda()));
      if (values.is_cpu() && entry.spec.name.rfind("buffer/", 0) != 0)
        originals_[i] = values;
      else
        copy.copy_(values, /*non_blocking=*/values.is_cuda());
      if (values.is_cuda()) device = values.device();
      entry.values = copy;
      ++i;
    }
  if (device) {
    copied_.emplace(device->type());
    copied_->record(c10::impl::VirtualGuardImpl(device->type()).getStream(*device));
  }
  taken_ = std::none_of(originals_.begin(), originals_.end(),
                        [](const at::Tensor& original) { return original.defined(); });
}

void Snapshot::take() {
  for (size_t i = 0; i < originals_.size(); ++i)
    if (originals_[i].defined())
      std::memcpy(copies_[i].mutable_data_ptr(), originals_[i].const_data_ptr(),
                  originals_[i].nbytes());
  taken_ = true;
  taken_.notify_all();
  if (!copied_) return;
  // This thread's own device may be another one.
  const c10::DeviceGuard guard(copied_->device());
  copied_->synchronize();
}

double Snapshot::wait() const {
  if (taken_) return 0;
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  taken_.wait(false);
  return base::ms_since(begin);
}

}  // namespace meshwright::train
