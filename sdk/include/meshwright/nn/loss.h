// The loss of a language model over logits that may be cut over the vocabulary.
//
//   // Which ids this rank's columns of the head are:
//   VocabularyShard shard = VocabularyShard::of(tp_group, vocab_size);
//   // Logits are never gathered:
//   at::Tensor loss = cross_entropy_sum(head(x), targets, &shard) / tokens;
//   loss.backward();
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "meshwright/parallel/group.h"

namespace meshwright {

// This rank's columns of the logits are the ids [begin, end) of `size`; the ranks of `group` hold
// all ids between them.
struct MESHWRIGHT_API VocabularyShard {
  std::shared_ptr<Group> group;
  int64_t begin = 0, end = 0, size = 0;
  std::shared_ptr<const Later> later = {};
  // As a plan cuts a vocabulary: by ceil chunks, the last ones shorter or empty.
  static VocabularyShard of(std::shared_ptr<Group> group, int64_t size);
};

// The sum of -log softmax(logits)[target] over the targets that are not `ignore_index`; 0 when all
// are. logits: [.., ids of this rank] in float32, bfloat16 or float16; targets: [..] int64, ids of
// the whole vocabulary. Returns a float32 scalar, the same on every rank. (float64 logits give a
// float64 one.) Without a shard, or with a group of one, nothing is sent.
//
// Collective over the shard's group, forward only: an all-reduce (max) of one float per target and
// one (sum) of two; backward sends nothing. The gradient, softmax minus one-hot, comes in the dtype
// of the logits. No copy of the logits in float32 is made beyond a few rows at a time. Infinities
// and NaN do as in at::cross_entropy_loss, but the gradient of an ignored row is always 0.
//
// `weights`: [..] float32, factors of the targets' losses, without gradients; undefined: all are 1.
//
// Throws Error(bad_token) for a target outside the vocabulary, before anything is sent, and
// Error(model_does_not_fit) when shapes or dtypes do not fit together. On a CUDA device, where the
// host does not wait for the targets, such a loss is not a number and a later call throws. There
// the gradient may take the memory of logits that nobody else holds.
MESHWRIGHT_API at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& targets,
                                            const VocabularyShard* shard = nullptr,
                                            int64_t ignore_index = -100,
                                            const at::Tensor& weights = {});

// Throws Error(bad_token) for a target outside of the vocabulary that a kernel on a device has met
// since the last call, where the host has waited for that since. Trainer asks after every step.
MESHWRIGHT_API void throw_bad_target();

}  // namespace meshwright
