// A step of copies: gradients into buckets, their reduction, what got none, and clipping.
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "clip.h"
#include "meshwright/error.h"
#include "replicas.h"
#include "sdk/base/text.h"
#include "unit_names.h"

namespace meshwright::detail {

using at::Tensor;

bool ReplicatedModel::values_written(const ValuesWritten& written) {
  frozen_stays_ = written.by == ValuesWritten::By::optimizer;
  return false;
}

void ReplicatedModel::after_optimizer_step() {
  c10::NoGradGuard no_grad;
  if (compute_.defined()) compute_.copy_(values_);
  // Who calls without a word may have written everything.
  if (!std::exchange(frozen_stays_, false) && frozen_compute_.defined())
    frozen_compute_.copy_(frozen_);
}

void ReplicatedModel::begin_step() {
  for (Parameter& p : parameters_) {
    p.arrived = p.ever = p.absorbed = p.told = false;
    p.variable.mutable_grad() = Tensor();
  }
  if (direct()) {  // nor keeps anything else the last step's while this one's come
    for (FlatParameterGroup& update : updates_) update.grads = Tensor();
    for (ParallelParameter& p : described_) p.grad = Tensor();
  }
  for (Bucket& bucket : buckets_) {
    try {
      if (told_) bucket.work.wait();  // of a step cut short: it still writes into the bucket
    } catch (const Error&) {
      // The step failed already, and the next call will say so.
    }
    bucket.launched = false;
    bucket.work = Work();
    bucket.reduced = Tensor();
  }
  next_ = 0;
  told_ = false;
  if (policy_.broadcast_buffers && !alone()) {
    c10::NoGradGuard no_grad;
    std::vector<Tensor> buffers = model_->buffers();
    broadcast(buffers);
  }
}

void ReplicatedModel::begin_micro_batch(GradientSync sync) {
  last_ = sync == GradientSync::reduce;
  told_ = told_ || sync == GradientSync::when_told;
  for (Parameter& p : parameters_) p.arrived = false;
  for (Bucket& bucket : buckets_) {
    bucket.waiting = 0;
    for (size_t member : bucket.members) bucket.waiting += !parameters_[member].unused;
  }
}

// Where gradients of a parameter add up. On one rank the last micro-batch of a bucket that got
// nothing before is all there is to sum.
Tensor ReplicatedModel::slot(const Parameter& p) {
  Bucket& bucket = buckets_[p.bucket];
  if (reduce_ == storage_ || (alone() && last_ && !bucket.reduced.defined()))
    return grads_.narrow(0, p.offset, p.count);
  if (!bucket.reduced.defined())
    bucket.reduced = at::zeros({bucket.end - bucket.begin}, grads_.options().dtype(reduce_));
  return bucket.reduced.narrow(0, p.offset - bucket.begin, p.count);
}

std::optional<GradientPlace> ReplicatedModel::gradient_place(size_t index) {
  Parameter& p = parameters_[index];
  if (!values_.is_cuda() || reduce_ != at::kFloat || storage_ != at::kFloat || !collects() ||
      buckets_[p.bucket].launched)
    return std::nullopt;
  return GradientPlace{slot(p).view(p.sizes), share(), std::exchange(p.absorbed, true)};
}

// Adds a gradient to its bucket, already divided by the number of ranks, and lets go of it. What
// autograd adds up over micro-batches replaces what the bucket has.
void ReplicatedModel::absorb(Parameter& p) {
  const Tensor gradient = p.variable.grad();
  const Tensor into = slot(p);
  const bool first = !p.absorbed || !collects();
  if (gradient.defined())
    scaled_add(into, gradient.contiguous().view({-1}), share(), first);
  else if (first)
    into.zero_();
  p.absorbed = true;
  if (collects()) p.variable.mutable_grad() = Tensor();
}

void ReplicatedModel::gradient_ready(size_t index) {
  c10::NoGradGuard no_grad;
  Parameter& p = parameters_[index];
  Bucket& bucket = buckets_[p.bucket];
  if (told_ && bucket.launched) throw reduced_already("a gradient of " + p.name + " came");
  const bool counted = std::exchange(p.arrived, true);
  p.ever = true;
  if (bucket.launched && !alone()) {  // the sum is on its way
    if (p.unused) return;             // check_unused() says so
    throw second_gradient(p.name);
  }
  if (collects() || last_) absorb(p);
  if (!last_ || counted || p.unused || bucket.waiting == 0) return;
  --bucket.waiting;
  if (bucket.waiting == 0) launch_ready();
}

// Buckets start in one order on all ranks, whatever the order in which they fill.
void ReplicatedModel::launch_ready() {
  for (; next_ < buckets_.size() && buckets_[next_].waiting == 0; ++next_) {
    Bucket& bucket = buckets_[next_];
    if (bucket.launched) continue;  // told to
    // What no gradient of this micro-batch came for: that of earlier ones, or zero.
    for (size_t member : bucket.members)
      if (!parameters_[member].absorbed) absorb(parameters_[member]);
    launch(bucket);
  }
}

void ReplicatedModel::launch(Bucket& bucket) {
  bucket.launched = true;
  bucket.work = group_->all_reduce(bucket.reduced.defined()
                                       ? bucket.reduced
                                       : grads_.narrow(0, bucket.begin, bucket.end - bucket.begin));
}

// Places of the parameters of the units named, or in the modules named. Copies have no units of
// their own, so they go by the general rule.
std::vector<size_t> ReplicatedModel::meant(const std::vector<std::string>& units) {
  if (!parameters_.empty() && parameters_.front().unit.empty()) {
    const ModelOutline outline = outline_of(*model_);
    std::map<std::string_view, Parameter*> by_name;
    for (Parameter& p : parameters_) by_name.emplace(p.name, &p);
    for (const PlannedUnit& unit : plan_units(outline))
      for (size_t p : unit.parameters)
        if (auto found = by_name.find(outline.parameters[p].name); found != by_name.end())
          found->second->unit = unit.name;
  }
  return units_meant(units, parameters_.size(), [&](size_t p, const std::string& name) {
    return text::lies_in(parameters_[p].unit, name) || text::lies_in(parameters_[p].name, name);
  });
}

// Each may be reduced by itself, as far as its bucket goes.
std::vector<std::string> ReplicatedModel::unit_names() const {
  std::vector<std::string> out;
  for (const ParallelParameter& p : described_) out.push_back(p.name);
  return out;
}

void ReplicatedModel::hold_units(const std::vector<std::string>& units, bool) {
  meant(units);  // they are whole as long as the model lives
}

// A bucket starts with the last of its parameters, in the order of buckets: alike on all ranks, as
// the calls are.
void ReplicatedModel::reduce_units(const std::vector<std::string>& units) {
  c10::NoGradGuard no_grad;
  check_told(told_);
  for (size_t p : meant(units)) parameters_[p].told = true;
  if (direct()) return;
  const bool last = std::exchange(last_, true);
  for (Bucket& bucket : buckets_) {
    if (bucket.launched || !std::all_of(bucket.members.begin(), bucket.members.end(),
                                        [&](size_t p) { return parameters_[p].told; }))
      continue;
    for (size_t member : bucket.members)
      if (!collects() || !parameters_[member].absorbed) absorb(parameters_[member]);
    launch(bucket);
  }
  last_ = last;
}

void ReplicatedModel::check_reduced() const {
  if (!told_ || last_) return;
  std::set<std::string> units;
  for (const Parameter& p : parameters_)
    if (p.trainable && !p.told) units.insert(p.unit.empty() ? p.name : p.unit);
  std::string names;
  for (const std::string& unit : units) names += (names.empty() ? "unit " : ", ") + unit;
  if (!names.empty()) throw not_reduced(names);
}

void ReplicatedModel::check_unused() {
  std::vector<std::string> missing, surprising;
  for (Parameter& p : parameters_) {
    if (!p.trainable) continue;
    if (policy_.static_graph && !learned_)
      p.unused = !p.ever;
    else if (!p.ever && !p.unused)
      missing.push_back(p.name);
    else if (p.ever && p.unused)
      surprising.push_back(p.name);
  }
  bool first = policy_.static_graph && !learned_;
  learned_ = true;
  if (first || (missing.empty() && surprising.empty())) return;
  if (policy_.find_unused_parameters && !policy_.static_graph) return;
  const std::vector<std::string>& names = missing.empty() ? surprising : missing;
  std::string list;
  for (size_t i = 0; i < names.size() && i < 8; ++i) list += (i ? ", " : "") + names[i];
  if (names.size() > 8) list += " and " + std::to_string(names.size() - 8) + " more";
  Error error(ErrorCode::unused_parameter,
              policy_.static_graph
                  ? "the set of used parameters changed after the first step: " + list
                  : "rank " + std::to_string(world_->rank()) + ": no gradient came for " + list);
  if (!policy_.options.empty()) {
    const std::string key =
        policy_.options + (policy_.static_graph ? ".static_graph" : ".find_unused_parameters");
    error.key(key).help("set " + key + (policy_.static_graph ? " = false" : " = true"));
  }
  if (!policy_.static_graph)
    error.help("freeze what the model does not use (requires_grad = false)");
  throw error;
}

void ReplicatedModel::end_step() {
  c10::NoGradGuard no_grad;
  check_reduced();
  if (direct()) {
    size_t group = 0, behind = described_.size();  // described in the opposite order
    for (Parameter& p : parameters_) {
      --behind;
      if (!p.trainable) continue;
      Tensor gradient = p.variable.grad();
      if (!gradient.defined()) gradient = at::zeros(p.sizes, values_.options());
      gradient = gradient.to(storage_).contiguous();
      updates_[group++].grads = gradient.view({-1});
      described_[behind].grad = gradient;
    }
    sum_partial_gradients();
    return;
  }
  for (Bucket& bucket : buckets_) bucket.waiting = 0;
  launch_ready();  // also what is missing, so that no other rank waits in vain
  for (Bucket& bucket : buckets_) {
    bucket.work.wait();
    if (bucket.reduced.defined())
      grads_.narrow(0, bucket.begin, bucket.end - bucket.begin).copy_(bucket.reduced);
    bucket.reduced = Tensor();
  }
  if (!policy_.gradient_as_bucket_view) {
    size_t group = 0, behind = described_.size();
    for (Parameter& p : parameters_) {
      --behind;
      if (!p.trainable) continue;
      Tensor reduced = grads_.narrow(0, p.offset, p.count), own = p.variable.grad();
      if (!own.defined() || own.scalar_type() != storage_) own = reduced.clone().view(p.sizes);
      own.view({-1}).copy_(reduced);
      updates_[group++].grads = own.view({-1});
      described_[behind].grad = own;
    }
  }
  sum_partial_gradients();
  check_unused();
}

void ReplicatedModel::sum_partial_gradients() {
  if (tensor_parallel_) tensor_parallel_->sum_partial_gradients(described_, reduce_);
}

double ReplicatedModel::clip(double max_norm, double scale, double* left) {
  check_reduced();
  if (tensor_parallel_)
    return clip_or_leave(tensor_parallel_->gradient_sets(described_, {}), max_norm, scale,
                         world_->device(), {}, left);
  std::vector<Tensor> gradients;
  for (const FlatParameterGroup& update : updates_) gradients.push_back(update.grads);
  return clip_or_leave({{gradients, {}}}, max_norm, scale, world_->device(), {}, left);
}

}  // namespace meshwright::detail
