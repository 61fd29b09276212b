// Copies of what a save writes, so that training goes on beside the writing.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <vector>

#include "engine/train/rank_files.h"

namespace meshwright::train {

// The memory of the copies is kept for the next save.
class Snapshot {
 public:
  // From here on the entries are copies. What only the optimizer changes is copied by take(), the
  // rest (buffers, which a forward may change, and what lies on a device) at once.
  void prepare(std::vector<RankFile>& files);
  // In the thread that writes. After it the optimizer may change the values.
  void take();
  // In the thread that trains, before an update: returns once take() is done, and the milliseconds
  // that took.
  double wait() const;

 private:
  std::vector<at::Tensor> originals_, copies_;  // an undefined original is copied already
  std::atomic<bool> taken_ = true;
};

}  // namespace meshwright::train
