// The logits of the last position of texts that mostly begin as they did before: keys and values of
// what was read stay, and the model computes what is new.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "meshwright/model/running_model.h"
#include "meshwright/trainer.h"
#include "sdk/base/attention_cache.h"

namespace meshwright::generate {

// Of one model whose parameters stay as they are while it lives. Not thread-safe.
class LastLogits {
 public:
  LastLogits(Trainer& trainer, RunningModel& net);

  // A text under the number that it keeps until it is dropped.
  struct Text {
    int64_t number = 0;
    std::span<const int64_t> ids;  // at least one
  };
  // Collective. Gives float32 [texts, vocabulary] on the host. Texts with one new token each are
  // one forward of a model of the engine's own; every other one has its own.
  at::Tensor of(const std::vector<Text>& texts);
  // Collective. The same for text 0: ids [1, length] int64 on the CPU; gives [1, 1, vocabulary].
  at::Tensor of(const at::Tensor& ids);
  // Gives back what is kept of a text that has ended.
  void drop(int64_t text);
  // How many ids were read anew by the last call.
  int64_t computed() const { return computed_; }

 private:
  struct Part {
    std::vector<int64_t> texts, positions;
    at::Tensor ids;  // [texts, rows]: the new ones
  };
  // Of one forward; positions of 0 read anew.
  at::Tensor last_of(const Part& part);
  at::Tensor last_of_whole(const Text& text);
  at::Tensor proven(const Text& text, const at::Tensor& found);
  double tolerance() const;

  Trainer& trainer_;
  RunningModel& net_;
  detail::KeyValueCache cache_;
  std::map<int64_t, std::vector<int64_t>> read_;  // by text
  int64_t computed_ = 0;
  bool keeps_ = false, ours_ = false, proven_ = false;
};

}  // namespace meshwright::generate
