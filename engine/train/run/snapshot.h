// Copies of what a save writes, so that training goes on beside the writing.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <atomic>
#include <optional>
#include <vector>

#include "engine/train/run/rank_files.h"

namespace meshwright::train {

// The memory of the copies is kept for the next save.
class Snapshot {
 public:
  // From here on the entries are copies. Of what lies on the host, what only the optimizer changes
  // is copied by take(), buffers, which a forward may change, at once. What lies on a device is
  // copied by its stream: before all that is launched there afterwards, and nobody waits here.
  void prepare(std::vector<RankFile>& files);
  // In the thread that writes. After it the copies are whole.
  void take();
  // In the thread that trains, before an update: returns once the update may change the values, and
  // the milliseconds that took.
  double wait() const;

 private:
  std::vector<at::Tensor> originals_, copies_;  // an undefined original is copied without take()
  std::optional<c10::Event> copied_;            // comes after a device's copies
  std::atomic<bool> taken_ = true;              // the originals
};

}  // namespace meshwright::train
