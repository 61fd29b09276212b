// Longer than most files: one class, whose flags (arrived, ever, launched) are read side by side.
#include "meshwright/parallel/replicated_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <set>

#include "meshwright/error.h"
#include "meshwright/nn/module.h"
#include "meshwright/parallel/gradients.h"
#include "meshwright/parallel/tensor_parallel.h"
#include "sdk/memory/buffers.h"
#include "sdk/planning/unit_layout.h"
#include "unit.h"

namespace meshwright {

namespace {

using at::Tensor;

class ReplicatedModel final : public ParallelModel {
 public:
  ReplicatedModel(std::shared_ptr<torch::nn::Module> model, ReplicatedPolicy policy,
                  std::shared_ptr<Group> group, std::shared_ptr<World> world,
                  std::shared_ptr<TensorParallel> tensor_parallel);

  void begin_step() override;
  void begin_micro_batch(GradientSync sync) override;
  void end_step() override;
  const std::vector<ParallelParameter>& parameters() const override { return described_; }
  const std::vector<FlatParameterGroup>& update_groups() const override { return updates_; }
  void after_optimizer_step() override;
  double clip_grad_norm(double max_norm, double scale) override;
  Tensor full_tensor(std::string_view name) override;
  void summon_full_parameters(const std::function<void()>& body) override { body(); }
  std::shared_ptr<Group> data_group() override {
    return tensor_parallel_ ? group_ : world_->everyone();
  }
  std::shared_ptr<TensorParallel> tensor_parallel() const override { return tensor_parallel_; }

  void gradient_ready(size_t parameter);

 private:
  struct Parameter {
    std::string name;
    Tensor variable;
    std::vector<int64_t> sizes;
    int64_t count = 0, offset = 0;  // in values_ and grads_
    bool trainable = true;
    size_t bucket = 0;
    bool arrived = false;  // a gradient came in this micro-batch
    bool ever = false;     // in any micro-batch of this step
    bool unused = false;   // static_graph: by the first step
  };
  struct Bucket {
    int64_t begin = 0, end = 0;  // elements of grads_
    std::vector<size_t> members;
    size_t waiting = 0;
    bool launched = false;
    Tensor reduced;  // in the reduce dtype, when it is not the storage dtype and there is anything
                     // to sum
    Work work;
  };

  bool alone() const { return group_->size() == 1; }
  // One rank without casts, and no wider sum of micro-batches to keep: gradients stay where
  // autograd puts them.
  bool direct() const { return alone() && param_ == storage_ && !detail::wider(reduce_, storage_); }
  // Whether gradients of earlier micro-batches wait in the buckets. Autograd adds them up in the
  // dtype of computation, which is of use only where that is as wide as the reduce dtype.
  bool collects() const {
    return policy_.gradient_as_bucket_view || detail::wider(reduce_, param_);
  }
  void lay_out();
  void adopt();
  void describe();
  void broadcast(const std::vector<Tensor>& tensors);
  void absorb(Parameter& p);
  void launch_ready();
  void check_unused();
  void sum_partial_gradients();

  std::shared_ptr<torch::nn::Module> model_;
  ReplicatedPolicy policy_;
  std::shared_ptr<Group> group_;
  std::shared_ptr<World> world_;
  std::shared_ptr<TensorParallel> tensor_parallel_;
  at::ScalarType storage_ = at::kFloat, param_, reduce_, output_;
  std::vector<Parameter> parameters_;  // in the order of the buckets
  std::vector<Bucket> buckets_;
  size_t next_ = 0;  // bucket to launch
  Tensor values_, grads_, compute_;
  int64_t trainable_ = 0;
  bool last_ = true, learned_ = false;
  std::vector<ParallelParameter> described_;
  std::vector<FlatParameterGroup> updates_;
};

struct GradientHook : torch::autograd::PostAccumulateGradHook {
  GradientHook(ReplicatedModel* m, size_t p) : model(m), parameter(p) {}
  void operator()(const Tensor&) override { model->gradient_ready(parameter); }
  ReplicatedModel* model;
  size_t parameter;
};

ReplicatedModel::ReplicatedModel(std::shared_ptr<torch::nn::Module> model, ReplicatedPolicy policy,
                                 std::shared_ptr<Group> group, std::shared_ptr<World> world,
                                 std::shared_ptr<TensorParallel> tensor_parallel)
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
  std::optional<at::ScalarType> storage;
  for (const auto& item : model_->named_parameters()) {
    const Tensor& t = item.value();
    if (!seen.insert(t.unsafeGetTensorImpl()).second) continue;  // tied
    if (storage.value_or(t.scalar_type()) != t.scalar_type() ||
        !at::isFloatingType(t.scalar_type()))
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
  storage_ = storage.value_or(at::kFloat);
  // The last layers' gradients come first; frozen parameters lie behind all others.
  for (bool trainable : {true, false})
    for (size_t i = forward.size(); i-- > 0;)
      if (forward[i].trainable == trainable) parameters_.push_back(std::move(forward[i]));
  lay_out();
  adopt();
  describe();
}

void ReplicatedModel::lay_out() {
  std::vector<int64_t> counts;
  int64_t offset = 0;
  for (Parameter& p : parameters_) {
    p.offset = offset;
    offset += p.count;
    if (!p.trainable) continue;
    trainable_ = offset;
    counts.push_back(p.count);
  }
  const auto width = static_cast<int64_t>(c10::elementSize(reduce_));
  for (GradientBucket& planned :
       gradient_buckets(counts, width, policy_.first_bucket_bytes, policy_.bucket_bytes)) {
    for (size_t p : planned.members) parameters_[p].bucket = buckets_.size();
    Bucket& bucket = buckets_.emplace_back();
    bucket.begin = planned.begin;
    bucket.end = planned.end;
    bucket.members = std::move(planned.members);
  }
}

void ReplicatedModel::adopt() {
  c10::NoGradGuard no_grad;
  at::TensorOptions options = at::TensorOptions().dtype(storage_).device(world_->device());
  int64_t total = 0;
  for (const Parameter& p : parameters_) total += p.count;
  values_ = at::empty({total}, options);
  bool casts = param_ != storage_;
  if (casts) compute_ = at::empty({total}, options.dtype(param_));
  std::vector<Tensor> given;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = parameters_[i];
    Tensor master = values_.narrow(0, p.offset, p.count).view(p.sizes);
    bool meta = p.variable.is_meta();
    if (!meta) {
      master.copy_(p.variable);
      given.push_back(master);
    }
    Tensor data = casts ? compute_.narrow(0, p.offset, p.count).view(p.sizes) : master;
    if (meta)
      p.variable.unsafeGetTensorImpl()->shallow_copy_from(data.getIntrusivePtr());
    else
      p.variable.set_data(data);
    if (p.trainable && !direct())
      torch::autograd::impl::set_post_acc_grad_hooks(p.variable,
                                                     std::make_unique<GradientHook>(this, i));
  }
  if (!alone()) {
    for (const Tensor& buffer : model_->buffers())
      if (!buffer.is_meta()) given.push_back(buffer);
    broadcast(given);
  }
  if (!direct()) grads_ = at::zeros({trainable_}, options);
  after_optimizer_step();
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
    out.local = values_.narrow(0, p->offset, p->count).view(p->sizes);
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

void ReplicatedModel::after_optimizer_step() {
  if (!compute_.defined()) return;
  c10::NoGradGuard no_grad;
  compute_.copy_(values_);
}

void ReplicatedModel::begin_step() {
  for (Parameter& p : parameters_) {
    p.arrived = p.ever = false;
    p.variable.mutable_grad() = Tensor();
  }
  for (Bucket& bucket : buckets_) {
    bucket.launched = false;
    bucket.work = Work();
    bucket.reduced = Tensor();
  }
  next_ = 0;
  if (policy_.broadcast_buffers && !alone()) {
    c10::NoGradGuard no_grad;
    std::vector<Tensor> buffers = model_->buffers();
    broadcast(buffers);
  }
}

void ReplicatedModel::begin_micro_batch(GradientSync sync) {
  last_ = sync == GradientSync::reduce;
  for (Parameter& p : parameters_) p.arrived = false;
  for (Bucket& bucket : buckets_) {
    bucket.waiting = 0;
    for (size_t member : bucket.members) bucket.waiting += !parameters_[member].unused;
  }
}

// Adds a gradient to its bucket, already divided by the number of ranks, and lets go of it.
void ReplicatedModel::absorb(Parameter& p) {
  const Tensor gradient = p.variable.grad();
  Bucket& bucket = buckets_[p.bucket];
  Tensor slot;
  // On one rank the last micro-batch of a bucket that got nothing before is all there is to sum.
  if (reduce_ == storage_ || (alone() && last_ && !bucket.reduced.defined())) {
    slot = grads_.narrow(0, p.offset, p.count);
  } else {
    if (!bucket.reduced.defined())
      bucket.reduced = at::zeros({bucket.end - bucket.begin}, grads_.options().dtype(reduce_));
    slot = bucket.reduced.narrow(0, p.offset - bucket.begin, p.count);
  }
  if (gradient.defined())
    detail::scaled_add(slot, gradient.contiguous().view({-1}),
                       1.0 / static_cast<double>(group_->size()), !p.ever);
  else if (!p.ever)
    slot.zero_();
  if (collects()) p.variable.mutable_grad() = Tensor();
}

void ReplicatedModel::gradient_ready(size_t index) {
  c10::NoGradGuard no_grad;
  Parameter& p = parameters_[index];
  bool counted = p.arrived;
  p.arrived = true;
  if (collects()) {
    absorb(p);
    p.ever = true;
  } else if (last_) {
    p.ever = false;  // autograd has added up all micro-batches
    absorb(p);
    p.ever = true;
  }
  Bucket& bucket = buckets_[p.bucket];
  if (last_ && !counted && !p.unused && bucket.waiting > 0 && --bucket.waiting == 0) launch_ready();
}

// Buckets start in one order on all ranks, whatever the order in which they fill.
void ReplicatedModel::launch_ready() {
  for (; next_ < buckets_.size() && buckets_[next_].waiting == 0; ++next_) {
    Bucket& bucket = buckets_[next_];
    bucket.launched = true;
    // What no gradient came for is zero, and stays known as such: check_unused() asks for it at the
    // end of the step.
    for (size_t member : bucket.members)
      if (!parameters_[member].ever) absorb(parameters_[member]);
    bucket.work = group_->all_reduce(
        bucket.reduced.defined() ? bucket.reduced
                                 : grads_.narrow(0, bucket.begin, bucket.end - bucket.begin));
  }
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

double ReplicatedModel::clip_grad_norm(double max_norm, double scale) {
  if (tensor_parallel_)
    return clip_gradients(tensor_parallel_->gradient_sets(described_, {}), max_norm, scale,
                          world_->device());
  std::vector<Tensor> gradients;
  for (const FlatParameterGroup& update : updates_) gradients.push_back(update.grads);
  return clip_gradients({{gradients, {}}}, max_norm, scale, world_->device());
}

Tensor ReplicatedModel::full_tensor(std::string_view name) {
  for (const ParallelParameter& p : described_)
    if (p.name == name)
      return tensor_parallel_ ? tensor_parallel_->whole(name, p.local).clone() : p.local.clone();
  throw Error(ErrorCode::internal, "the model has no parameter " + std::string(name));
}

}  // namespace

std::unique_ptr<ParallelModel> replicate_model(std::shared_ptr<torch::nn::Module> model,
                                               const ReplicatedPolicy& policy,
                                               std::shared_ptr<Group> group,
                                               std::shared_ptr<World> world,
                                               std::shared_ptr<TensorParallel> tensor_parallel) {
  return std::make_unique<ReplicatedModel>(std::move(model), policy, std::move(group),
                                           std::move(world), std::move(tensor_parallel));
}

}  // namespace meshwright
