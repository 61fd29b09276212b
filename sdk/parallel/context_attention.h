// Attention over tokens that lie on the ranks of cp: the cores' method under context parallelism.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "meshwright/nn/attention.h"
#include "meshwright/parallel/group.h"
#include "sdk/base/context_split.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/nn/attention_parts.h"

namespace meshwright {
class ContextParallel;
}

namespace meshwright::detail {

// The groups of one rank: cp = ring * ulysses, the ranks of one ulysses group next to each other.
struct ContextGroups {
  std::shared_ptr<Group> context;                    // all ranks of cp
  std::shared_ptr<Group> ring, ulysses;              // of one rank where there is nothing to do
  ContextMethod method = ContextMethod::all_gather;  // of the ranks of `ring`
  ContextBalance balance = ContextBalance::head_tail;
};

// How rows lie on the ranks of cp, for the model's own use.
MESHWRIGHT_API std::shared_ptr<ContextParallel> make_context_parallel(std::shared_ptr<Group> group,
                                                                      ContextBalance balance);

// `core`: the name of the module that it computes for, which errors of its exchanges say.
MESHWRIGHT_API std::shared_ptr<AttentionMethod> context_attention(ContextGroups groups,
                                                                  const std::string& core);

// How keys and values of other ranks come to the queries of this one, and their gradients back
// (semantics 14.3).

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
