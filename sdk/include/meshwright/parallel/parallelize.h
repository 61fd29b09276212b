// What parallelize() is made of: the execution of a sharding plan, and its steps one by one for
// strategies that put them together themselves.
#pragma once

#include <memory>

#include "meshwright/parallel/parallel.h"
#include "meshwright/parallel/sharded_units.h"
#include "meshwright/sharded_strategy.h"

namespace meshwright {

// Collective: tensor, expert and context parallelism, activation checkpointing, then the units of
// the plan,
// in the order of torch FSDP2. What Strategy::parallelize does unless it is overridden. Notices of
// the plan become notices of the world. Throws Error(bad_module) for a unit without hooks and for
// an outline that is not the model's, Error(not_in_release) for what it does not apply.
MESHWRIGHT_API std::unique_ptr<ParallelModel> execute_plan(ParallelizeRequest& request,
                                                           const ShardingPlan& plan);

// The plan that parallelize() executes on this rank: request.plan, else what the strategy's
// plan_sharding() answers for the live parameters. Local.
MESHWRIGHT_API ShardingPlan plan_of(const Strategy& strategy, const ParallelizeRequest& request);

// The groups of the axes that the plan shards along (MeshPlan::fsdp_axes). Collective. Throws
// Error(internal) for a plan without such axes.
MESHWRIGHT_API ShardGroups shard_groups(const ParallelizeRequest& request);

// Names of the layers that recompute under activation checkpointing: the direct items of module
// lists, of the parts in `scope` (semantics 6.2): a list is vision or audio by a word of its name
// or of a module around it (vision_tower, visual, audio_encoder), else language.
MESHWRIGHT_API std::vector<std::string> layer_names(const ModelOutline& outline,
                                                    const std::vector<std::string>& scope = {
                                                        "all"});

// Activation checkpointing as the job asks for, in mode and scope. Whole layers only if
// `whole_layers` and the scope is all. A scope that meets no layer is a notice of the world.
// Returns the names of the modules that recompute. Throws as checkpoint_layers().
MESHWRIGHT_API std::vector<std::string> apply_activation_checkpointing(
    const ParallelizeRequest& request, bool whole_layers);

// Throws Error(not_in_release) when the request asks for tp, ep, cp or pp above 1 of a strategy
// that does not apply it. Under pp the request is one of a rank's stages alone; the model's passes
// then come as ParallelModel says of pipelines.
MESHWRIGHT_API void reject_unsupported_sizes(const ParallelizeRequest& request,
                                             bool applies_tensor_parallel = false,
                                             bool applies_expert_parallel = false,
                                             bool applies_context_parallel = false,
                                             bool applies_pipeline = false);

// Throws Error(device_unavailable) when the strategy's own option `backend` names another back end
// than the world's.
MESHWRIGHT_API void check_backend(const ParallelizeRequest& request);

}  // namespace meshwright
