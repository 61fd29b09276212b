// What is known to go wrong, or to be of no use, before any rank starts: `validate` says it, and so
// does `train` at its start.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/job/plan.h"

namespace meshwright::plan {

// Adds warnings and notices about a learning-rate schedule that never does what it says, and about
// samples that are longer than the model's positions; throws Error(model_does_not_fit) where there
// are no weights for more. make_plan() calls it, so that every verb that makes a plan says the
// same. `model`: its name in messages.
void warn_of_schedule(const Job& job, JobPlan& plan);
void check_positions(const Job& job, const ModelOutline& outline, const std::string& model,
                     JobPlan& plan);

// What distributed.moe.dispatcher = "auto" comes to for a model that is built in, whose ranks are
// known to bring equally many tokens: written into the options, which costs and run follow.
// `where`: the ranks compute.
void choose_dispatcher(const Job& job, MemoryFacts::Where where, JobPlan& plan,
                       StrategyConfig& config);

// Adds notices for keys of [distributed.moe] that this model, strategy and sizes leave without
// effect. `cost` and `config` as the plan's footprint was made of.
void tell_idle_moe(const Job& job, const ShardingRequest& cost, const StrategyConfig& config,
                   JobPlan& plan);

// The memory that the processes of this host may use together; 0 bytes: not known.
struct HostMemory {
  int64_t bytes = 0;
  std::string
      limit;  // what sets the bound: "this machine has", "the memory cgroup of this process allows"
};
// /proc/meminfo with swap, or the smallest limit of the memory cgroups that hold this process.
// `root` is another folder only in tests.
HostMemory host_memory(const std::filesystem::path& root = "/");

// Throws Error(memory_exceeded) where `ranks` processes, which hold next to nothing but themselves,
// are more than `memory` has room for. `flag`: says how many.
void check_room_of_ranks(int64_t ranks, const HostMemory& memory, const std::string& flag);

// What one rank needs, by its plan. `kept`: what it holds all the time; `peak`: with gathered
// parameters and saved activations on top.
struct MemoryNeed {
  int64_t kept = 0, peak = 0;
};
MemoryNeed memory_need(const Bytes& bytes);

// The bytes of rank 0 were the job changed by `sets` (as --set takes them) and started with `world`
// ranks; nullopt: there is no such job.
using Replan =
    std::function<std::optional<Bytes>(const std::vector<std::string>& sets, int64_t world)>;

// Holds what `ranks` ranks on this host keep against its memory. Certainly too much:
// Error(memory_exceeded) whose help names settings that `replan` found to fit. Nearly too much, or
// too much once activations are counted: a warning. `strategies`: names of those that could train
// the job instead. A plan without a model says nothing.
void check_memory(const JobPlan& plan, int64_t ranks, const HostMemory& memory,
                  const std::vector<std::string>& strategies, const Replan& replan,
                  Diagnostics& diagnostics);

// Help of a refused plan, tried before it is given: a size that the mesh takes may still not divide
// the model's heads, its layers or the batch.

// What a help that begins with "set " says, as --set takes it: of "set distributed.tp_size = 2: all
// fit" {"distributed.tp_size=2"}. Empty: it says something else.
std::vector<std::string> settings_in(const std::string& help);
// Of "use a world size of 8", 8.
std::optional<int64_t> world_in(const std::string& help);

// Whether there is a plan of the job with these settings beside its own, on so many ranks.
using IsPlanned = std::function<bool(const std::vector<std::string>& sets, int64_t world)>;

// The error without the help that leads to no plan. Where all that can be tried is in vain, other
// values of the size that it is about are; where these are, too, each is a step of several, and the
// error stays as it is.
Error with_tried_help(const Error& error, const ParallelSizes& sizes, int64_t world,
                      const IsPlanned& is_planned);

}  // namespace meshwright::plan
