// How a model is taken over by its copies on every rank, and what is read of it.
#include "meshwright/parallel/replicated_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "gradients.h"
#include "meshwright/error.h"
#include "meshwright/nn/module.h"
#include "meshwright/parallel/scalar_type.h"
#include "replicas.h"
#include "sdk/base/mailboxes.h"
#include "sdk/base/text.h"
#include "sdk/base/words.h"
#include "sdk/planning/unit_layout.h"
#include "unit.h"

namespace meshwright::detail {

using at::Tensor;

namespace {

struct BucketHook : torch::autograd::PostAccumulateGradHook, GradientKeeper {
  BucketHook(ReplicatedModel* m, size_t p) : model(m), parameter(p) {}
  void operator()(const Tensor&) override { model->gradient_ready(parameter); }
  std::optional<GradientPlace> place() override { return model->gradient_place(parameter); }
  ReplicatedModel* model;
  size_t parameter;
};

[[noreturn]] void refuse_buckets() {
  throw Error(ErrorCode::bad_module,
              "the planned buckets of gradients hold other parameters than the model has, or the "
              "same ones in another order")
      .help(
          "make the outline from the model itself (outline_of), parameters in the order of "
          "their registration");
}

}  // namespace

ReplicatedModel::ReplicatedModel(std::shared_ptr<torch::nn::Module> model, ReplicatedPolicy policy,
                                 std::shared_ptr<Group> group, std::shared_ptr<World> world,
                                 std::shared_ptr<TensorParallel> tensor_parallel,
                                 const std::vector<GradientBucket>& buckets)
    : model_(std::move(model)),
      policy_(std::move(policy)),
      group_(std::move(group)),
      world_(std::move(world)),
      tensor_parallel_(std::move(tensor_parallel)),
      param_(scalar_type(policy_.mp.param)),
      reduce_(scalar_type(policy_.mp.reduce)),
      output_(scalar_type(policy_.mp.output)) {
  std::set<c10::TensorImpl*> seen;
  std::vector<Parameter> forward;
  std::optional<at::ScalarType> trained, frozen;
  for (const auto& item : model_->named_parameters()) {
    const Tensor& t = item.value();
    if (!seen.insert(t.unsafeGetTensorImpl()).second) continue;  // tied
    std::optional<at::ScalarType>& storage = t.requires_grad() ? trained : frozen;
    if (storage.value_or(t.scalar_type()) != t.scalar_type() || !trains(t.scalar_type()))
      throw Error(
          ErrorCode::bad_module,
          "parameter " + item.key() + " has another dtype than those before it, or no floating one")
          .help("give all parameters one storage dtype (model.torch_dtype)");
    storage = t.scalar_type();
    Parameter p;
    p.name = item.key();
    p.variable = t;
    p.sizes = t.sizes().vec();
    p.count = t.numel();
    p.trainable = t.requires_grad();
    forward.push_back(std::move(p));
  }
  storage_ = trained.value_or(frozen.value_or(at::kFloat));
  frozen_storage_ = frozen.value_or(storage_);
  // The last layers' gradients come first; frozen parameters lie behind all others.
  for (bool trainable : {true, false})
    for (size_t i = forward.size(); i-- > 0;)
      if (forward[i].trainable == trainable) parameters_.push_back(std::move(forward[i]));
  lay_out(buckets);
  place_buffers(*model_, world_->device());
  adopt();
  describe();
  // Here, where all ranks are alike: a bucket may start its first sum at another place of the
  // backward pass on a rank where a parameter is not used.
  if (!alone()) expect_large_sums(*group_);
}

std::vector<GradientBucket> ReplicatedModel::own_buckets(const std::vector<int64_t>& counts) const {
  return gradient_buckets(counts, static_cast<int64_t>(c10::elementSize(reduce_)),
                          policy_.first_bucket_bytes, policy_.bucket_bytes);
}

void ReplicatedModel::lay_out(const std::vector<GradientBucket>& planned) {
  std::vector<int64_t> counts;
  int64_t offset = 0;
  for (Parameter& p : parameters_) {
    p.offset = offset;
    offset += p.count;
    if (!p.trainable) continue;
    trainable_ = offset;
    counts.push_back(p.count);
  }
  size_t next = 0;
  for (const GradientBucket& made : planned.empty() ? own_buckets(counts) : planned) {
    Bucket& bucket = buckets_.emplace_back();
    bucket.begin = made.begin;
    bucket.end = made.end;
    bucket.members = made.members;
    int64_t elements = 0;
    for (size_t p : made.members) {
      if (p != next++ || p >= counts.size() || parameters_[p].offset != made.begin + elements)
        refuse_buckets();
      elements += counts[p];
      parameters_[p].bucket = buckets_.size() - 1;
    }
    if (made.end != made.begin + elements) refuse_buckets();
  }
  if (next != counts.size()) refuse_buckets();
}

Tensor ReplicatedModel::part(const Parameter& p, const Tensor& trained,
                             const Tensor& frozen) const {
  const Tensor& of = p.trainable ? trained : frozen;
  return of.narrow(0, p.offset - (p.trainable ? 0 : trainable_), p.count).view(p.sizes);
}

void ReplicatedModel::adopt() {
  c10::NoGradGuard no_grad;
  at::TensorOptions options = at::TensorOptions().dtype(storage_).device(world_->device());
  int64_t total = 0;
  for (const Parameter& p : parameters_) total += p.count;
  values_ = at::empty({trainable_}, options);
  frozen_ = at::empty({total - trainable_}, options.dtype(frozen_storage_));
  if (param_ != storage_) compute_ = at::empty({trainable_}, options.dtype(param_));
  if (param_ != frozen_storage_)
    frozen_compute_ = at::empty({total - trainable_}, options.dtype(param_));
  const Tensor &trained = compute_.defined() ? compute_ : values_,
               &rest = frozen_compute_.defined() ? frozen_compute_ : frozen_;
  std::vector<Tensor> given;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = parameters_[i];
    Tensor master = part(p, values_, frozen_);
    bool meta = p.variable.is_meta();
    if (!meta) {
      master.copy_(p.variable);
      given.push_back(master);
    }
    Tensor data = part(p, trained, rest);
    if (meta)
      p.variable.unsafeGetTensorImpl()->shallow_copy_from(data.getIntrusivePtr());
    else
      p.variable.set_data(data);
    if (p.trainable && !direct())
      torch::autograd::impl::set_post_acc_grad_hooks(p.variable,
                                                     std::make_unique<BucketHook>(this, i));
  }
  if (!alone()) {
    for (const Tensor& buffer : model_->buffers())
      if (!buffer.is_meta()) given.push_back(buffer);
    broadcast(given);
  }
  if (!direct()) grads_ = at::zeros({trainable_}, options);
  after_optimizer_step();
  cast_inputs_and_outputs();
}

void ReplicatedModel::cast_inputs_and_outputs() {
  const bool casts = param_ != storage_;
  bool casts_io = (policy_.mp.cast_forward_inputs && casts) || output_ != param_;
  if (!casts_io) return;
  HookHost* host = HookHost::of(*model_);
  if (host == nullptr) {
    if (!casts) return;  // nothing computes in a low precision, so nothing needs a cast
    throw Error(ErrorCode::bad_module,
                "mixed precision casts inputs and outputs, and the outermost module (" +
                    model_->name() + ") has no hooks")
        .key("distributed.mp_policy.param_dtype")
        .help("set distributed.mp_policy.param_dtype = \"float32\"")
        .help(
            "declare the outermost module with MESHWRIGHT_MODULE(...) in place of "
            "TORCH_MODULE(...)");
  }
  if (policy_.mp.cast_forward_inputs)
    host->before_forward.push_back([this](torch::nn::Module&, TensorRefs& inputs) {
      for (Tensor* t : inputs)
        if (t->defined() && at::isFloatingType(t->scalar_type()) && t->scalar_type() != param_)
          *t = t->to(param_);
    });
  host->after_forward.push_back([this](torch::nn::Module&, TensorRefs& outputs) {
    for (Tensor* t : outputs)
      if (t->defined() && at::isFloatingType(t->scalar_type()) && t->scalar_type() != output_)
        *t = t->to(output_);
  });
}

void ReplicatedModel::describe() {
  std::vector<std::pair<std::string, std::string>> placement;
  if (!alone()) placement.emplace_back(policy_.axis, "replicate");
  for (size_t i = parameters_.size(); i-- > 0;) {
    const Parameter* p = &parameters_[i];
    ParallelParameter out;
    out.name = p->name;
    out.global_shape = p->sizes;
    out.region = Region::whole(p->sizes);
    out.placement = placement;
    out.local = part(*p, values_, frozen_);
    if (tensor_parallel_) tensor_parallel_->describe(out);
    if (p->trainable && grads_.defined())
      out.grad = grads_.narrow(0, p->offset, p->count).view(p->sizes);
    described_.push_back(std::move(out));
  }
  if (!direct() && policy_.gradient_as_bucket_view) {
    updates_.push_back({values_.narrow(0, 0, trainable_), grads_});
  } else {
    for (const Parameter& p : parameters_)
      if (p.trainable) updates_.push_back({values_.narrow(0, p.offset, p.count), Tensor()});
  }
}

void ReplicatedModel::broadcast(const std::vector<Tensor>& tensors) {
  std::vector<Work> works;
  for (const Tensor& t : tensors) works.push_back(group_->broadcast(t, 0));
  for (Work& work : works) work.wait();
}

Tensor ReplicatedModel::full_tensor(std::string_view name) {
  for (const ParallelParameter& p : described_)
    if (p.name == name)
      return tensor_parallel_ ? tensor_parallel_->whole(name, p.local).clone() : p.local.clone();
  throw Error(ErrorCode::internal, "the model has no parameter " + std::string(name));
}

}  // namespace meshwright::detail

namespace meshwright {

std::unique_ptr<ParallelModel> replicate_model(std::shared_ptr<torch::nn::Module> model,
                                               const ReplicatedPolicy& policy,
                                               std::shared_ptr<Group> group,
                                               std::shared_ptr<World> world,
                                               std::shared_ptr<TensorParallel> tensor_parallel,
                                               const std::vector<GradientBucket>& buckets) {
  return std::make_unique<detail::ReplicatedModel>(std::move(model), policy, std::move(group),
                                                   std::move(world), std::move(tensor_parallel),
                                                   buckets);
}

namespace detail {

// A step of copies: gradients into buckets, their reduction, what got none, and clipping.

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
  const std::string list = text::first_few(names, 8);
  Error error(ErrorCode::unused_parameter,
              policy_.static_graph
                  ? "the set of used parameters changed after the first step: " + list
                  : "rank " + std::to_string(world_->rank()) + ": no gradient came for " + list);
  if (const std::string key =
          policy_.options.of(policy_.static_graph ? "static_graph" : "find_unused_parameters");
      !key.empty())
    error.key(key).help("set " + key + (policy_.static_graph ? " = false" : " = true"));
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

}  // namespace detail

}  // namespace meshwright
