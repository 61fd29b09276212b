// What a rank holds to the plain loop, to its plan and to itself.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <stdexcept>

#include "meshwright/parallel/tensor_parallel.h"
#include "meshwright/parallel/testing.h"
#include "sdk/kit/conformance/training/rank_run.h"

namespace meshwright::conformance {

using at::Tensor;

namespace {

int64_t axis_size(const MeshPlan& plan, const std::string& axis) {
  return plan.device_mesh ? plan.device_mesh->find_size(axis).value_or(1) : 1;
}

}  // namespace

void RankRun::check_data_group() {
  if (int64_t size = model_->data_group()->size(); size != data_ranks_)
    fail("data_group() has " + std::to_string(size) + " ranks, but " + std::to_string(data_ranks_) +
         " have data of their own");
}

// Which parameters it lists; of each of them check_parts() tells the rest.
void RankRun::check_parameters() {
  const size_t before = problems_.size();
  std::set<std::string> named;
  for (const ParallelParameter& p : model_->parameters()) {
    if (!named.insert(p.name).second) fail("parameters() lists " + p.name + " twice");
    const ParameterOutline* known = outline_.find_parameter(p.name);
    if (known == nullptr)
      fail("parameters() lists " + p.name + ", which the model lacks here");
    else if (p.global_shape != known->shape)
      fail(p.name + ": its global_shape is " + shape_text(p.global_shape) + ", not " +
           shape_text(known->shape));
  }
  for (const ParameterOutline& p : outline_.parameters)
    if (!named.contains(p.name)) fail("parameters() lacks " + p.name);
  sound_ = problems_.size() == before;
}

void RankRun::check_independence() {
  if (const std::string axis = model_->independent_axis();
      !axis.empty() && axis_size(mesh_, axis) == 1)
    fail("independent_axis() is " + axis + ", along which its mesh has no two ranks");
}

// What layers hold is computed again in a backward where that is asked for, and nowhere else.
void RankRun::check_runs(int64_t step, int64_t before) {
  if (stages_) return;
  const int64_t found = net_->mlp_runs() - before,
                expected = kLayers * std::ssize(micro_batches()) * (recomputes_ ? 2 : 1);
  if (found != expected)
    fail(step_text(step) + " ran the MLPs of its layers " + std::to_string(found) +
         " times, expected " + std::to_string(expected) + ": activation_checkpointing is " +
         (recomputes_ ? "full" : "none"));
}

// full_tensor() gives what a plain loop has, and each part is what it says of that.
void RankRun::check_whole(const Tensors& expected, const std::string& when, double tolerance) {
  for (const ParallelParameter& p : model_->parameters()) {
    if (outline_.find_parameter(p.name) == nullptr) continue;
    const Tensor whole = model_->full_tensor(p.name), &known = expected.at(p.name);
    if (whole.sizes() != known.sizes()) {
      fail(when + ": full_tensor of " + p.name + " has the shape " + shape_text(whole.sizes()) +
           ", not " + shape_text(known.sizes()));
      continue;
    }
    if (sound_)
      if (auto apart = difference(p.local, cut(whole, p.region), 0))
        fail(when + ": " + p.name + ": its local holds " +
             text_of(*apart, p.region, p.global_shape) + ", where full_tensor has " +
             number_text(apart->expected) + ": its region " + to_text(p.region) +
             " or its offset in the update group is wrong");
    if (auto apart = difference(whole, known, tolerance))
      fail(when + ": full_tensor of " + p.name + " has " +
           text_of(*apart, Region::whole(p.global_shape), p.global_shape) + ", expected " +
           number_text(apart->expected));
  }
}

void RankRun::check_groups(int64_t step) {
  for (const FlatParameterGroup& group : model_->update_groups())
    if (!group.grads.defined() || group.grads.numel() != group.values.numel())
      throw std::runtime_error(step_text(step) + ": an update group has " +
                               std::to_string(group.values.numel()) + " values and " +
                               std::to_string(group.grads.defined() ? group.grads.numel() : 0) +
                               " gradients");
}

void RankRun::check_gradients(int64_t step) {
  if (!sound_ || !problems_.empty()) return;
  const std::vector<FlatParameterGroup>& groups = model_->update_groups();
  for (const ParallelParameter& p : model_->parameters()) {
    const std::string lead = step_text(step) + ": the gradient of " + p.name;
    if (!p.grad.defined() || p.grad.sizes() != p.local.sizes())
      return fail(lead + " " +
                  (p.grad.defined() ? "has the shape " + shape_text(p.grad.sizes())
                                    : std::string("is undefined")) +
                  ", its local " + shape_text(p.local.sizes()));
    if (p.local.numel() == 0) continue;
    const Place place = *place_of(p.local, groups);
    if (auto apart = difference(p.grad, alike(groups[place.group].grads, place, p.local), 0))
      return fail(lead + " is " + text_of(*apart, p.region, p.global_shape) +
                  ", but the optimizer uses " + number_text(apart->expected) +
                  " of its update group: grad is another's or a copy");
    const Tensor& whole = reference().gradients[static_cast<size_t>(step)].at(p.name);
    const double tolerance = tolerance_ * (1e-2 + 10 * whole.abs().max().item<double>());
    if (auto apart = difference(p.grad, cut(whole, p.region), tolerance))
      return fail(
          lead + " is " + text_of(*apart, p.region, p.global_shape) +
          (approximate()
               ? ", the mean over the ranks that hold it " + number_text(apart->expected)
               : ", that of a plain loop " + number_text(apart->expected) + explain(p, step)));
  }
}

// Whole on every rank. Collective.
Tensor RankRun::gathered_gradient(const std::string& name, const std::vector<int64_t>& shape) {
  // The sum over the ranks that hold an element, and how many they are.
  const Tensor both = at::zeros({2, element_count(shape)}, at::kDouble);
  for (const ParallelParameter& p : model_->parameters()) {
    if (p.name != name || !sound_ || p.local.numel() == 0 || !p.grad.defined() ||
        p.grad.sizes() != p.local.sizes())
      continue;
    const Tensor at = positions_in(p.region, shape);
    both[0].index_copy_(0, at, p.grad.detach().to(at::kDouble).flatten());
    both[1].index_fill_(0, at, 1);
  }
  world_->everyone()->all_reduce(both, ReduceOp::sum, /*control=*/true).wait();
  return (both[0] / both[1].clamp_min(1)).view(shape);
}

// Holds approximate gradients to the exact ones at the same parameters, and goes on with them.
// Collective.
void RankRun::use_gradients(int64_t step, const LossAndGradients& exact, double norm) {
  const double factor = clipped_by(clipping_of(step), norm);
  const TrainingState& before = own_.states.back();
  TrainingState sums;
  Tensors found;
  double apart = 0, size = 0, along = 0, worst = -1;
  std::string most;
  for (const auto& [name, gradient] : exact.gradients) {
    const Tensor used = gathered_gradient(name, gradient.sizes().vec()) / factor;
    found[name] = used.to(gradient.scalar_type());
    Tensor right = gradient.to(at::kDouble), mine = used;
    if (auto sum = before.exact.find(name); sum != before.exact.end()) {
      right = right + sum->second;
      mine = mine + before.used.at(name);
    }
    const double own = (mine - right).square().sum().item<double>();
    apart += own;
    size += right.square().sum().item<double>();
    along += (mine * right).sum().item<double>();
    // NaN counts as worst.
    if (!(own <= worst)) {
      worst = own;
      most = name;
    }
    sums.exact[name] = right;
    sums.used[name] = mine;
  }
  const double error = std::sqrt(apart / size),
               allowed = *gradient_tolerance_ + (tolerance_ == kTolerance ? 0 : tolerance_);
  gradient_error_ = std::max(gradient_error_, error);
  if (!(*gradient_tolerance_ > 0 && *gradient_tolerance_ < 1))
    fail("the gradient_tolerance of its plan is " + number_text(*gradient_tolerance_) +
         ", which is not above 0 and below 1");
  else if (problems_.empty() && sound_ && !(error <= allowed))
    fail(step_text(step) + ": the sum of its gradients so far is off by " + number_text(error) +
         " of the exact one's L2 norm, the gradient_tolerance of its plan declares at most " +
         number_text(*gradient_tolerance_) + "; most of it in " + most + ", and it is " +
         number_text(along / size) + " times as long along the exact one");
  advance(own_, exact.loss, std::move(found));
  own_.states.back().exact = std::move(sums.exact);
  own_.states.back().used = std::move(sums.used);
}

// Something that its gradients follow from, besides parameters, is left out of the checkpoint where
// the same ranks end with other values.
void RankRun::check_end(const std::vector<SavedPart>& unbroken) {
  if (!problems_.empty()) return;
  const std::vector<SavedPart> mine = save();
  for (size_t i = 0; i < std::min(mine.size(), unbroken.size()); ++i)
    if (auto apart = difference(mine[i].values, unbroken[i].values, 0))
      return fail("after the last step " + mine[i].name + " is " +
                  text_of(*apart, mine[i].region, mine[i].shape) + ", without a stop " +
                  number_text(apart->expected) +
                  ": its gradients follow from something that state_tensors() lacks");
}

// What a wrong gradient is the right one of; "" when it is not known.
std::string RankRun::explain(const ParallelParameter& p, int64_t step) const {
  const Tensor found = p.grad.detach().to(at::kDouble).flatten();
  auto factor = [&](const Tensor& whole) {
    const Tensor other = cut(whole, p.region).to(at::kDouble).flatten();
    const double f = found.dot(other).item<double>() / other.dot(other).item<double>();
    const double scale = found.abs().max().item<double>();
    return difference(found, other * f, 1e-4 * scale) ? 0.0 : f;
  };
  auto told = [](double f, const std::string& what) {
    const bool one = std::abs(f - 1) < 1e-3;
    return ": it is " + (one ? std::string() : number_text(std::round(f * 1e4) / 1e4) + " times ") +
           what;
  };
  const Clipping how = clipping_of(step);
  const std::string after = how.scale == 1 && how.max_norm == 0
                                ? ""
                                : " after clip_grad_norm(" + number_text(how.max_norm) + ", " +
                                      number_text(how.scale) + ")";
  const Tensors& right = exact_.gradients[static_cast<size_t>(step)];
  if (double f = factor(right.at(p.name)); f != 0) return told(f, "that gradient" + after);
  auto rows_of = [&](const std::string& axis) {  // of the ranks that differ from this one elsewhere
    std::vector<int64_t> rows;
    const Mesh& mesh = *mesh_.device_mesh;
    const int64_t share = kRows / mesh_.dp;
    for (int64_t rank = 0; rank < mesh.size(); ++rank)
      if (mesh.coordinate(rank, axis) == mesh.coordinate(world_->rank(), axis))
        for (int64_t i = 0; i < share; ++i) rows.push_back(mesh.coordinate(rank, "dp") * share + i);
    std::ranges::sort(rows);
    rows.erase(std::ranges::unique(rows).begin(), rows.end());
    return rows;
  };
  auto gradients_of = [&](const std::vector<int64_t>& rows) {
    return backward_at(exact_.states[static_cast<size_t>(step)].parameters, step, rows).gradients;
  };
  struct Suspect {
    std::string what;
    std::vector<int64_t> rows;
  };
  std::vector<Suspect> suspects;
  for (const char* axis : {"dp_replicate", "dp_shard"})
    if (axis_size(mesh_, axis) > 1 && axis_size(mesh_, axis) < mesh_.dp)
      suspects.push_back({std::string("never averaged over ") + axis, rows_of(axis)});
  suspects.push_back({"never averaged over other ranks", own_rows()});
  std::vector<int64_t> first, last;
  const int64_t share = kRows / mesh_.dp, of_first = std::ssize(micro_batches().front());
  for (int64_t row = 0; row < kRows; ++row) (row % share < of_first ? first : last).push_back(row);
  suspects.push_back({"the last micro-batch alone", last});
  for (const Suspect& suspect : suspects) {
    if (std::ssize(suspect.rows) == kRows) continue;
    const Tensors other = gradients_of(suspect.rows);
    if (double f = factor(other.at(p.name)); f != 0)
      return ": it is that of " + std::to_string(suspect.rows.size()) + " of the " +
             std::to_string(kRows) + " samples, " + suspect.what;
  }
  auto holds = [&](const Tensor& more) { return factor(right.at(p.name) + more * how.scale) != 0; };
  if (step == 0) return "";
  if (holds(exact_.gradients[static_cast<size_t>(step) - 1].at(p.name)))
    return ": it holds that of the step before, too";
  if (step == kCutShortStep &&
      holds(gradients_of(first).at(p.name) * (static_cast<double>(first.size()) / kRows)))
    return ": it holds that of the step that was cut short, which begin_step() should forget";
  return "";
}

// What a step sent, weights and gradients as well as activations, beside the closed form.
void RankRun::count(const std::vector<TrafficCounter::Row>& before) {
  struct Sent {
    int64_t count = 0, bytes = 0;
    bool operator==(const Sent&) const = default;
  };
  std::map<std::pair<std::string, std::string>, std::pair<Sent, Sent>> rows;  // found, planned
  auto add = [&](const TrafficCounter::Row& row, int64_t sign) {
    if (row.axis == "control") return;
    // Without a mesh all ranks are the one axis that there is.
    const bool all = !mesh_.device_mesh && row.axis == world_->everyone()->axis();
    Sent& sent = rows[{all ? "dp" : row.axis, row.op}].first;
    sent.count += sign * row.count, sent.bytes += sign * row.bytes;
  };
  for (const TrafficCounter::Row& row : world_->traffic().rows()) add(row, 1);
  for (const TrafficCounter::Row& row : before) add(row, -1);
  for (const WireRow& row : wire_)
    if ((kCountedStep + 1) % row.every == 0)
      rows[{row.axis, row.op}].second = {row.count, row.bytes};
  for (const auto& [key, both] : rows)
    if (const auto& [found, planned] = both; found != planned)
      fail(step_text(kCountedStep) + " sent " + std::to_string(found.bytes) + " bytes in " +
           std::to_string(found.count) + " x " + key.second + " on " + key.first +
           ", its footprint says " + std::to_string(planned.bytes) + " in " +
           std::to_string(planned.count));
}

// What this rank holds of parameters, of their gradients and of what the optimizer keeps lies
// between its parts alone and what they are padded to; what a step has beside it at most is near
// what the closed form says of transient and activations together. The model is small and not made
// of what the form knows alone, so that it is off by up to 0.7 and 1.5 times, all strategies here
// and all layouts looked at; generators that recomputed layers keep would weigh more than they do.
void RankRun::check_memory() {
  constexpr double kLeast = 0.65, kMost = 1.6;
  // With what the module has of them: some strategies keep it whole.
  using Storages = std::map<const void*, int64_t>;
  Storages values, gradients, states;
  auto add = [](Storages& to, const Tensor& x) {
    if (!x.defined()) return;
    // Of what a strategy has freed the storage has no bytes, and may not be asked for.
    const c10::Storage& held = x.unsafeGetTensorImpl()->unsafe_storage();
    if (held) to[held.unsafeGetStorageImpl()] = static_cast<int64_t>(held.nbytes());
  };
  auto sum = [](const Storages& of) {
    int64_t out = 0;
    for (const auto& [storage, size] : of) out += size;
    return out;
  };
  int64_t parts = 0;
  for (const ParallelParameter& p : model_->parameters())
    parts += static_cast<int64_t>(p.local.nbytes());
  for (const FlatParameterGroup& group : model_->update_groups()) {
    add(values, group.values);
    add(gradients, group.grads);
  }
  for (const Tensor& p : net_->parameters()) {
    add(values, p);
    add(gradients, p.grad());
  }
  for (const Tensor& momentum : momenta_) add(states, momentum);
  for (const StateTensor& kept : model_->state_tensors()) add(states, kept.local);
  auto hold = [&](const char* what, int64_t planned, int64_t held) {
    if (planned < parts || planned > held)
      fail("it holds " + std::to_string(held) + " bytes of " + what + ", " + std::to_string(parts) +
           " without padding, its footprint says " + std::to_string(planned));
  };
  hold("weights", planned_.weights, sum(values));
  hold("gradients", planned_.gradients, sum(gradients));
  hold("the optimizer's state", planned_.optimizer, sum(states));
  const double planned = static_cast<double>(planned_.transient + planned_.activations),
               measured = static_cast<double>(measured_);
  if (!recomputes_ && (measured < kLeast * planned || measured > kMost * planned))
    fail(step_text(kCountedStep) + " had at most " + std::to_string(measured_) +
         " bytes of tensors more than it began with, its footprint says " +
         std::to_string(planned_.transient) + " transient and " +
         std::to_string(planned_.activations) + " of activations");
}

void RankRun::check_summoned(const Tensors& whole, std::vector<std::string>& found) {
  const std::shared_ptr<TensorParallel> tp = model_->tensor_parallel();
  for (const auto& item : net_->named_parameters()) {
    auto known = whole.find(item.key());
    if (known == whole.end()) continue;
    Tensor expected = known->second;
    if (const TensorParallel::Cut* part = tp ? tp->find(item.key()) : nullptr)
      expected = expected.narrow(part->dim, part->chunk.begin, part->chunk.end - part->chunk.begin);
    const std::string lead = "within summon_full_parameters " + item.key();
    try {
      const Tensor values = item.value().detach();
      if (values.sizes() != expected.sizes()) {
        found.push_back(lead + " has the shape " + shape_text(values.sizes()) + ", not " +
                        shape_text(expected.sizes()));
        return;
      }
      const double rounding = tolerance_ == kTolerance ? 0 : kRoundedTolerance;
      if (auto apart = difference(values.clone(), expected, rounding)) {
        found.push_back(lead + " has " +
                        text_of(*apart, Region::whole(expected.sizes()), expected.sizes().vec()) +
                        ", full_tensor " + number_text(apart->expected));
        return;
      }
    } catch (const std::exception& error) {
      const std::string text = error.what();
      found.push_back(lead + " is not whole: " + text.substr(0, text.find('\n')));
      return;
    }
  }
}

// Runs its body once with all parameters whole, and leaves the parts as they were.
void RankRun::check_summon() {
  Tensors whole, parts;
  for (const ParallelParameter& p : model_->parameters()) {
    parts[p.name] = p.local.detach().clone();
    if (outline_.find_parameter(p.name) != nullptr) whole[p.name] = model_->full_tensor(p.name);
  }
  int64_t calls = 0;
  std::vector<std::string> found;
  model_->summon_full_parameters([&] {
    if (calls++ == 0) check_summoned(whole, found);
  });
  if (calls != 1)
    fail("summon_full_parameters ran its body " + std::to_string(calls) + " times, not once");
  problems_.insert(problems_.end(), found.begin(), found.end());
  for (const ParallelParameter& p : model_->parameters())
    if (auto apart = difference(p.local, parts.at(p.name), 0)) {
      fail("after summon_full_parameters the local of " + p.name + " is " +
           text_of(*apart, p.region, p.global_shape) + ", before it was " +
           number_text(apart->expected) + ": the state did not come back");
      return;
    }
}

}  // namespace meshwright::conformance
