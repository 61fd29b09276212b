#include "sdk/kit/conformance/training/ranks.h"

#include <ATen/ops/zeros.h>

#include <map>
#include <utility>

#include "sdk/base/check_parts.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright::conformance {

void tell(const RunOutcome& outcome, const std::string& where, Findings& findings,
          const std::vector<std::string>& place) {
  bool first = true;
  for (const auto& [rank, problems] : outcome.problems) {
    findings.add(where + ": " + (rank >= 0 ? "rank " + std::to_string(rank) + ": " : "") +
                 problems.front());
    if (std::exchange(first, false))
      for (const std::string& line : place) findings.explain(where + ": " + line);
  }
}

PipelinePlan split_stages(torch::nn::Module& module, ModelOutline& outline,
                          const SharedOptions& shared, const MeshPlan& mesh, int64_t rank) {
  PipelinePlan plan = plan_pipeline(outline, shared.sizes.pp, shared.pipeline);
  const int64_t me = mesh.device_mesh->coordinate(rank, "pp");
  outline = stage_outline(outline, plan, me);
  std::vector<std::string> kept;
  for (const PipelineStage& stage : plan.stages)
    if (stage.rank == me) kept.insert(kept.end(), stage.modules.begin(), stage.modules.end());
  keep_modules(module, kept);
  return plan;
}

std::unique_ptr<PipelineRunner> open_pipeline(World& world, const MeshPlan& mesh,
                                              const PipelinePlan& plan, int64_t micro_batches) {
  PipelineSetup setup;
  setup.group = world.group("pp", mesh.device_mesh->group(world.rank(), "pp"));
  setup.run = simulate_pipeline(
      make_actions(PipelineSchedule::one_f_one_b, setup.group->size(), 1, micro_batches));
  setup.stages_of_rank = plan.stages_of_rank;
  for (const PipelineStage& stage : plan.stages) {
    setup.modules.push_back(stage.modules);
    setup.modules.back().push_back(root_of_stage(stage.index));
    setup.needs_input_gradient.push_back(stage.index > 0);
  }
  return std::make_unique<PipelineRunner>(std::move(setup));
}

StagePart part_of(const PipelineStage& stage, const PipelinePlan& plan) {
  return {.first = stage.index == 0,
          .last = stage.index + 1 == std::ssize(plan.stages),
          .begin = stage.first_layer,
          .end = stage.first_layer + stage.layer_count};
}

std::string tied_name(const ModelOutline& whole, const MeshPlan& mesh, const PipelinePlan& plan,
                      int64_t rank) {
  const int64_t me = mesh.device_mesh->coordinate(rank, "pp");
  std::string out;
  for (const ParameterOutline& p : stage_outline(whole, plan, plan.stages.back().rank).parameters)
    if (!p.copy_of.empty() && p.trainable) {
      if (me == plan.stages.front().rank) out = p.copy_of;
      if (me == plan.stages.back().rank) out = p.name;
    }
  return out;
}

void sum_tied(World& world, const MeshPlan& mesh, const PipelinePlan& plan,
              const ParallelModel& model, const std::string& name) {
  const std::vector<int64_t> ranks = mesh.device_mesh->group(world.rank(), "pp");
  const std::shared_ptr<Group> ends =
      world.group("pp", {ranks[static_cast<size_t>(plan.stages.front().rank)],
                         ranks[static_cast<size_t>(plan.stages.back().rank)]});
  for (const ParallelParameter& p : model.parameters())
    if (p.name == name && p.grad.defined()) ends->all_reduce(p.grad, ReduceOp::sum).wait();
}

bool has_last_stage(const World& world, const MeshPlan& mesh, const PipelinePlan& plan) {
  return plan.stages.back().rank == mesh.device_mesh->coordinate(world.rank(), "pp");
}

using at::Tensor;

std::string key_of(const StateTensor& kept) {
  return "the state " + kept.state + " of " + kept.name;
}

namespace {

std::string key_of_replica(const std::string& key, int64_t replica) {
  return replica == 0 ? key : key + " of replica " + std::to_string(replica);
}

}  // namespace

std::optional<Place> place_of(const Tensor& local, const std::vector<FlatParameterGroup>& groups) {
  for (size_t i = 0; i < groups.size(); ++i) {
    const Tensor& values = groups[i].values;
    if (!local.is_alias_of(values) || local.scalar_type() != values.scalar_type()) continue;
    const int64_t offset = local.storage_offset() - values.storage_offset();
    if (local.is_contiguous() && offset >= 0 && offset + local.numel() <= values.numel())
      return Place{i, offset};
  }
  return std::nullopt;
}

Tensor alike(const Tensor& flat, const Place& place, const Tensor& local) {
  return flat.view({-1}).narrow(0, place.offset, local.numel()).view(local.sizes());
}

namespace {

// One parameter, or its momentum, put together from all ranks.
class Saved {
 public:
  Saved(const std::string& name, const Tensor& expected)
      : Saved(name, expected.sizes().vec(), expected.options()) {
    expected_ = expected;
  }
  Saved(const std::string& name, const std::vector<int64_t>& shape,
        const at::TensorOptions& options)
      : name_(name), parts_(shape, options) {}

  // False when it contradicts what another rank holds.
  bool add(int64_t rank, const Region& region, const Tensor& values,
           std::vector<std::string>& problems) {
    const auto apart = parts_.add(rank, region, values);
    if (!apart) return true;
    problems.push_back("saves of replicas that differ: rank " + std::to_string(rank) + " holds " +
                       number_text(apart->mine) + " at " + element_text(apart->at, parts_.shape()) +
                       " of " + name_ + ", rank " + std::to_string(apart->other) + " " +
                       number_text(apart->theirs) + " (" + std::to_string(apart->count) + " of " +
                       std::to_string(apart->of) + " elements)");
    return false;
  }

  Tensor take(std::vector<std::string>& problems) {
    const Tensor &owners = parts_.owners(), holes = owners.lt(0).nonzero().flatten();
    if (holes.numel() > 0) {
      problems.push_back("saved: no rank holds " +
                         element_text(holes[0].item<int64_t>(), parts_.shape()) + " of " + name_ +
                         " (" + std::to_string(holes.numel()) + " of " +
                         std::to_string(owners.numel()) + " elements)");
    } else if (auto apart = expected_.defined() ? difference(parts_.whole(), expected_, 1e-5)
                                                : std::nullopt) {
      problems.push_back("saved: rank " + std::to_string(owners[apart->at].item<int64_t>()) +
                         " holds " + number_text(apart->found) + " at " +
                         element_text(apart->at, parts_.shape()) + " of " + name_ +
                         ", a plain loop " + number_text(apart->expected));
    }
    return parts_.whole();
  }

 private:
  std::string name_;
  Tensor expected_;
  comparison::Assembly parts_;
};

}  // namespace

TrainingState assemble(const SavedParts& parts, const TrainingState& expected,
                       std::vector<std::string>& problems) {
  TrainingState out;
  for (const auto& [name, whole] : expected.parameters) {
    Saved values(name, whole), momentum("the momentum of " + name, expected.momenta.at(name));
    bool sound = true;
    for (size_t rank = 0; sound && rank < parts.size(); ++rank)
      for (const SavedPart& part : parts[rank]) {
        if (part.name != name) continue;
        const auto of = static_cast<int64_t>(rank);
        sound = sound && values.add(of, part.region, part.values, problems) &&
                momentum.add(of, part.region, part.momentum, problems);
      }
    if (!sound) continue;
    out.parameters[name] = values.take(problems);
    out.momenta[name] = momentum.take(problems);
  }
  std::map<std::string, Saved> states;
  std::map<std::string, std::pair<size_t, int64_t>> counts;  // of replicas, as this rank says
  for (size_t rank = 0; rank < parts.size(); ++rank)
    for (const SavedPart& part : parts[rank]) {
      if (expected.parameters.contains(part.name)) continue;
      const std::string key = key_of_replica(part.name, part.replica.index);
      Saved& whole = states.try_emplace(key, key, part.shape, part.values.options()).first->second;
      if (!whole.add(static_cast<int64_t>(rank), part.region, part.values, problems)) return out;
      counts.emplace(part.name, std::pair(rank, part.replica.count));
    }
  for (auto& [name, whole] : states) out.states[name] = whole.take(problems);
  for (const auto& [name, said] : counts)
    for (int64_t replica = 0; replica < said.second; ++replica)
      if (const std::string key = key_of_replica(name, replica); !states.contains(key))
        problems.push_back("saved: rank " + std::to_string(said.first) + " says that there are " +
                           std::to_string(said.second) + " replicas, but no rank holds " + key);
  out.exact = expected.exact;
  out.used = expected.used;
  return out;
}

Tensor loaded(const TrainingState& state, const StateTensor& kept) {
  auto of = [&](int64_t replica) {
    const auto found = state.states.find(key_of_replica(key_of(kept), replica));
    return found == state.states.end() ? Tensor() : found->second;
  };
  if (!kept.replica || !of(0).defined()) return of(0);
  int64_t then = 1;
  while (of(then).defined()) ++then;
  const std::vector<int64_t> from = detail::begins_as(*kept.replica, then);
  if (from.size() == 1) return of(from[0]);
  Tensor sum = at::zeros(of(0).sizes(), at::kDouble);
  for (int64_t replica : from) sum.add_(of(replica));
  if (!from.empty()) sum.div_(static_cast<double>(from.size()));
  return sum.to(of(0).scalar_type());
}

}  // namespace meshwright::conformance
