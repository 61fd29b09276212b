// What a run holds at its fullest beside what a layout costs: strategies are not asked where
// tensors lie, nor what is done around Linears. The engine counts it.
#pragma once

#include <cstdint>
#include <string>

#include "meshwright/footprint.h"
#include "meshwright/sharding_plan.h"

namespace meshwright {

struct MemoryFacts {
  // Where the tensors of the ranks lie. unknown: a plan for any machine.
  enum class Where : uint8_t { unknown, host, device };
  Where where = Where::unknown;
  bool drops = false;  // adapters read a part of their inputs (lora.dropout)
};

// Adds it to `bytes`, which footprint_of() says of the plan; nothing where that does not know the
// activations. Local.
// On a device the loss writes the gradient of the logits over them, and gradients of shards come
// with their unit's backward. On the host a root that is larger than all other units takes sockets,
// whose buffers stay; and rows of experts come in steps.
MESHWRIGHT_API void count_run_memory(const ShardingRequest& request, const ShardingPlan& plan,
                                     const MemoryFacts& facts, Bytes& bytes);

// Why the parameters of a layer may lie elsewhere in another forward or backward, or come within
// the layer, and what to do about it. `what` is empty where they do not: in copies, and in units of
// whole layers that keep them (ZeRO levels 0 to 2, and flat units on one rank). Local.
struct ParametersMove {
  std::string what, help;
};
MESHWRIGHT_API ParametersMove why_parameters_move(const ShardingRequest& request,
                                                  const ShardingPlan& plan, const Footprint& cost);

}  // namespace meshwright
