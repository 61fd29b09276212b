// How a model is taken over by its copies on every rank, and what is read of it.
#include "meshwright/parallel/replicated_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <set>

#include "meshwright/error.h"
#include "meshwright/nn/module.h"
#include "meshwright/parallel/scalar_type.h"
#include "place_buffers.h"
#include "replicas.h"
#include "sdk/base/maps_gather.h"
#include "sdk/planning/unit_layout.h"
#include "unit_names.h"

namespace meshwright {

namespace detail {

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

}  // namespace detail

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

}  // namespace meshwright
