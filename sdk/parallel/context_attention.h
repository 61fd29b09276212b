// Attention over tokens that lie on the ranks of cp: the cores' method under context parallelism.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "meshwright/nn/attention.h"
#include "meshwright/parallel/context_split.h"
#include "meshwright/parallel/group.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright::detail {

// The groups of one rank: cp = ring * ulysses, the ranks of one ulysses group next to each other.
struct ContextGroups {
  std::shared_ptr<Group> context;                    // all ranks of cp
  std::shared_ptr<Group> ring, ulysses;              // of one rank where there is nothing to do
  ContextMethod method = ContextMethod::all_gather;  // of the ranks of `ring`
  ContextBalance balance = ContextBalance::head_tail;
};

// `core`: the name of the module that it computes for, which errors of its exchanges say.
MESHWRIGHT_API std::shared_ptr<AttentionMethod> context_attention(ContextGroups groups,
                                                                  const std::string& core);

}  // namespace meshwright::detail
