// The logits of a text's last position, of texts that mostly begin as the one before did: keys and
// values of what was read stay, and the model computes what is new.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "meshwright/model/running_model.h"
#include "meshwright/trainer.h"
#include "sdk/base/attention_cache.h"

namespace meshwright::generate {

// Of one model whose parameters stay as they are while it lives. Not thread-safe.
class LastLogits {
 public:
  LastLogits(Trainer& trainer, RunningModel& net);

  // Collective. ids [1, length] int64 on the CPU; gives [1, 1, vocabulary] on the host.
  at::Tensor of(const at::Tensor& ids);
  // How many of the ids of the last text were read anew.
  int64_t computed() const { return computed_; }

 private:
  at::Tensor last_of(const at::Tensor& ids, int64_t position);
  double tolerance() const;

  Trainer& trainer_;
  RunningModel& net_;
  detail::KeyValueCache cache_;
  std::vector<int64_t> read_;
  int64_t computed_ = 0;
  bool keeps_ = false, proven_ = false;
};

}  // namespace meshwright::generate
