#include "sdk/kit/conformance/training/ranks.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <limits>
#include <map>
#include <mutex>

#include "meshwright/parallel/testing.h"
#include "sdk/base/check_parts.h"
#include "sdk/base/plain_text.h"
#include "sdk/kit/conformance/probe.h"

namespace meshwright::conformance {

namespace {

bool is_of_group(const Error& error) {
  return error.code() == ErrorCode::collective_timeout ||
         error.code() == ErrorCode::collective_failed;
}

}  // namespace

RunOutcome collect(int64_t ranks,
                   const std::function<void(const std::shared_ptr<World>&, RankFound&)>& body) {
  RunOutcome out;
  std::mutex mutex;
  auto keep = [&](RankFound& found, int64_t rank) {
    std::lock_guard lock(mutex);
    if (!found.refusal.empty()) out.refusal = found.refusal;
    if (!found.problems.empty()) out.problems[rank] = std::move(found.problems);
  };
  try {
    run_ranks(
        ranks,
        [&](const std::shared_ptr<World>& world) {
          RankFound found;
          try {
            body(world, found);
          } catch (const std::exception& error) {
            // What it had found by then is mostly why.
            const auto* known = dynamic_cast<const Error*>(&error);
            if (found.problems.empty() && known != nullptr && is_of_group(*known)) throw;
            // LibTorch's exceptions go on with a backtrace.
            const std::string text = error.what();
            if (known != nullptr && (known->code() == ErrorCode::not_in_release ||
                                     known->code() == ErrorCode::device_unavailable))
              found.refusal = code_string(known->code());
            else if (found.problems.empty())
              found.problems = {known != nullptr ? one_line(*known)
                                                 : text.substr(0, text.find('\n'))};
            keep(found, world->rank());
            throw;  // the other ranks need not wait for this one
          }
          keep(found, world->rank());
        },
        std::chrono::seconds(10));
  } catch (const std::exception& error) {
    // The first line: LibTorch's exceptions go on with a backtrace.
    const std::string text = error.what();
    if (out.problems.empty() && out.refusal.empty())
      out.problems[-1] = {text.substr(0, text.find('\n'))};
  }
  return out;
}

void tell(const RunOutcome& outcome, const std::string& where, Findings& findings) {
  for (const auto& [rank, problems] : outcome.problems)
    findings.add(where + ": " + (rank >= 0 ? "rank " + std::to_string(rank) + ": " : "") +
                 problems.front());
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

Tensor positions_in(const Region& region, const std::vector<int64_t>& shape) {
  Tensor out = at::arange(element_count(shape)).view(shape);
  if (!region.flat())
    for (size_t d = 0; d < region.sizes.size(); ++d)
      out = out.narrow(static_cast<int64_t>(d), region.offsets[d], region.sizes[d]);
  out = out.flatten();
  return region.begin >= 0 ? out.narrow(0, region.begin, region.end - region.begin) : out;
}

Tensor cut(const Tensor& whole, const Region& region) {
  return whole.flatten()
      .index_select(0, positions_in(region, whole.sizes().vec()))
      .view(region.stored_shape());
}

std::string key_of(const StateTensor& kept) {
  return "the state " + kept.state + " of " + kept.name;
}

namespace {

std::string key_of_replica(const std::string& key, int64_t replica) {
  return replica == 0 ? key : key + " of replica " + std::to_string(replica);
}

}  // namespace

std::string number_text(double value) { return text::format("%.8g", value); }

std::string shape_text(at::IntArrayRef shape) {
  std::string out;
  for (int64_t size : shape) out += (out.empty() ? "" : ", ") + std::to_string(size);
  return "[" + out + "]";
}

std::string element_text(int64_t position, const std::vector<int64_t>& shape) {
  std::vector<int64_t> at(shape.size());
  for (size_t d = shape.size(); d-- > 0; position /= shape[d]) at[d] = position % shape[d];
  return "element " + shape_text(at);
}

std::optional<Difference> difference(const Tensor& found, const Tensor& expected,
                                     double tolerance) {
  if (found.numel() == 0) return std::nullopt;
  const Tensor ours = found.detach().flatten().to(at::kDouble),
               theirs = expected.detach().flatten().to(at::kDouble);
  const Tensor apart =
      (ours - theirs).abs().nan_to_num(/*nan=*/std::numeric_limits<double>::infinity());
  const auto at = apart.argmax().item<int64_t>();
  if (apart[at].item<double>() <= tolerance) return std::nullopt;
  return Difference{at, ours[at].item<double>(), theirs[at].item<double>()};
}

std::string text_of(const Difference& difference, const Region& region,
                    const std::vector<int64_t>& shape) {
  return number_text(difference.found) + " at " +
         element_text(positions_in(region, shape)[difference.at].item<int64_t>(), shape);
}

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
class Assembly {
 public:
  Assembly(const std::string& name, const Tensor& expected)
      : Assembly(name, expected.sizes().vec(), expected.options()) {
    expected_ = expected;
  }
  Assembly(const std::string& name, const std::vector<int64_t>& shape,
           const at::TensorOptions& options)
      : name_(name),
        shape_(shape),
        whole_(at::full({element_count(shape)}, std::numeric_limits<double>::quiet_NaN(), options)),
        owner_(at::full({element_count(shape)}, -1, at::kLong)) {}

  // False when it contradicts what another rank holds.
  bool add(int64_t rank, const Region& region, const Tensor& values,
           std::vector<std::string>& problems) {
    const Tensor at = positions_in(region, shape_), given = values.flatten();
    const Tensor owners = owner_.index_select(0, at), there = whole_.index_select(0, at);
    const Tensor apart = owners.ge(0).logical_and(there.ne(given));
    if (apart.any().item<bool>()) {
      const Tensor where = apart.nonzero().flatten();
      const auto i = where[0].item<int64_t>();
      problems.push_back("saves of replicas that differ: rank " + std::to_string(rank) + " holds " +
                         number_text(given[i].item<double>()) + " at " +
                         element_text(at[i].item<int64_t>(), shape_) + " of " + name_ + ", rank " +
                         std::to_string(owners[i].item<int64_t>()) + " " +
                         number_text(there[i].item<double>()) + " (" +
                         std::to_string(where.numel()) + " of " + std::to_string(given.numel()) +
                         " elements)");
      return false;
    }
    whole_.index_copy_(0, at, given);
    owner_.index_fill_(0, at, rank);
    return true;
  }

  Tensor take(std::vector<std::string>& problems) {
    const Tensor holes = owner_.lt(0).nonzero().flatten();
    if (holes.numel() > 0) {
      problems.push_back("saved: no rank holds " + element_text(holes[0].item<int64_t>(), shape_) +
                         " of " + name_ + " (" + std::to_string(holes.numel()) + " of " +
                         std::to_string(whole_.numel()) + " elements)");
    } else if (auto apart =
                   expected_.defined() ? difference(whole_, expected_, 1e-5) : std::nullopt) {
      problems.push_back("saved: rank " + std::to_string(owner_[apart->at].item<int64_t>()) +
                         " holds " + number_text(apart->found) + " at " +
                         element_text(apart->at, shape_) + " of " + name_ + ", a plain loop " +
                         number_text(apart->expected));
    }
    return whole_.view(shape_);
  }

 private:
  std::string name_;
  std::vector<int64_t> shape_;
  Tensor expected_, whole_, owner_;
};

}  // namespace

TrainingState assemble(const SavedParts& parts, const TrainingState& expected,
                       std::vector<std::string>& problems) {
  TrainingState out;
  for (const auto& [name, whole] : expected.parameters) {
    Assembly values(name, whole), momentum("the momentum of " + name, expected.momenta.at(name));
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
  std::map<std::string, Assembly> states;
  std::map<std::string, std::pair<size_t, int64_t>> counts;  // of replicas, as this rank says
  for (size_t rank = 0; rank < parts.size(); ++rank)
    for (const SavedPart& part : parts[rank]) {
      if (expected.parameters.contains(part.name)) continue;
      const std::string key = key_of_replica(part.name, part.replica.index);
      Assembly& whole =
          states.try_emplace(key, key, part.shape, part.values.options()).first->second;
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
