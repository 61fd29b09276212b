// How keys and values of other ranks come to the queries of this one, and their gradients back
// (semantics 14.3).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "meshwright/parallel/context_split.h"
#include "meshwright/parallel/group.h"
#include "sdk/nn/attention_parts.h"

namespace meshwright::detail {

using VisitKeys = std::function<void(std::vector<KeyPart>& parts)>;

// Collective, both ways, in the same order on all ranks. `own`: [2, parts, batch, rows, kv_heads,
// head_dim], keys and then values, contiguous; parts as `runs` says.
class KeyExchange {
 public:
  virtual ~KeyExchange() = default;
  // Calls `visit` once or several times, together with all keys that a query of this rank may see,
  // each once.
  virtual void forward(const at::Tensor& own, const VisitKeys& visit) = 0;
  // The same with gradients, to which `visit` adds what the queries of this rank have for them.
  // Gives the gradient of `own`, in its dtype: the sum of all ranks', rounded once.
  virtual at::Tensor backward(const at::Tensor& own, const VisitKeys& visit) = 0;
};

// What lies on the ranks of a group that exchanges keys: one entry a rank, of one list of runs for
// each of its parts.
using RunsOfRanks = std::vector<std::vector<std::vector<PositionRun>>>;

// Nothing moves.
std::unique_ptr<KeyExchange> local_keys(std::vector<std::vector<PositionRun>> own);
// All ranks' keys at once (all-gather); gradients are rounded and sent to their owners, which add
// them up in rank order.
std::unique_ptr<KeyExchange> gathered_keys(std::shared_ptr<Group> group, RunsOfRanks runs);
// One rank's keys after the other, each passed on to the next rank while they are used; gradients
// follow them, unrounded, and their owner adds its own last.
std::unique_ptr<KeyExchange> ring_keys(std::shared_ptr<Group> group, RunsOfRanks runs);
// Of each chunk that another rank's window reaches, to that rank alone.
std::unique_ptr<KeyExchange> window_keys(std::shared_ptr<Group> group, const ContextSplit& split,
                                         int64_t window);

}  // namespace meshwright::detail
