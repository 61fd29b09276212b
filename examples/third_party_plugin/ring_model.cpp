#include "ring_model.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <meshwright/nn/module.h>
#include <meshwright/parallel/gradients.h>
#include <meshwright/parallel/scalar_type.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <set>

#include "buckets.h"

namespace ring_zero {
namespace {

using namespace meshwright;
using at::Tensor;

class RingModel final : public ParallelModel {
 public:
  RingModel(std::shared_ptr<torch::nn::Module> model, RingPolicy policy,
            std::shared_ptr<World> world);

  void begin_step() override;
  void begin_micro_batch(GradientSync sync) override;
  void end_step() override { settle(); }
  const std::vector<ParallelParameter>& parameters() const override { return described_; }
  const std::vector<FlatParameterGroup>& update_groups() const override { return updates_; }
  void after_optimizer_step() override;
  double clip_grad_norm(double max_norm, double scale) override;
  Tensor full_tensor(std::string_view name) override;
  // They always are full.
  void summon_full_parameters(const std::function<void()>& body) override { body(); }
  std::shared_ptr<Group> data_group() override { return world_->everyone(); }

  void gradient_ready(size_t bucket, size_t member);

 private:
  struct Parameter {
    std::string name;
    Tensor variable;  // the module's own, a view of its bucket
    std::vector<int64_t> sizes;
    int64_t count = 0;
    bool arrived = false;  // its gradient came in this micro-batch
  };
  struct Part {  // a bucket at run time
    Bucket layout;
    Tensor whole;   // [ring * slice] what the model computes with
    Tensor values;  // [slice] what this rank updates: its part of `whole`, or a wider copy of that
    Tensor grads;   // [slice] their final gradient
    Tensor gradient;               // [ring * slice] what came since the last reduction
    Tensor packed, received, sum;  // of the reduction under way
    Work work;
    size_t waiting = 0;    // parameters without a gradient
    bool reduced = false;  // in this step
  };

  int64_t ring() const { return policy_.ring->size(); }
  int64_t copies() const { return policy_.copies ? policy_.copies->size() : 1; }
  Tensor mine(const Part& part, const Tensor& whole) const {
    return whole.narrow(0, policy_.ring->rank() * part.layout.slice, part.layout.slice);
  }
  // Zero where nothing came: a parameter that was not used has a gradient of zero.
  Tensor& gradient_of(Part& part) const {
    auto options = part.whole.options().dtype(scalar_type(policy_.mp.reduce));
    if (!part.gradient.defined()) part.gradient = at::zeros(part.whole.sizes(), options);
    return part.gradient;
  }
  void adopt(Part& part, at::ScalarType storage);
  void describe(const std::vector<std::pair<std::string, Tensor>>& frozen);
  void cast_at_the_border(torch::nn::Module& model) const;
  void launch_ready();
  void reduce(Part& part);
  void collect(Part& part);
  void settle();

  std::shared_ptr<torch::nn::Module> model_;
  RingPolicy policy_;
  std::shared_ptr<World> world_;
  at::ScalarType compute_;
  std::vector<Parameter> parameters_;
  std::vector<Part> parts_;
  size_t next_ = 0;           // bucket to reduce
  bool synchronise_ = false;  // this micro-batch reduces
  std::vector<ParallelParameter> described_;
  std::vector<FlatParameterGroup> updates_;
};

struct GradientHook : torch::autograd::PostAccumulateGradHook {
  GradientHook(RingModel* m, size_t b, size_t i) : model(m), bucket(b), member(i) {}
  void operator()(const Tensor&) override { model->gradient_ready(bucket, member); }
  RingModel* model;
  size_t bucket, member;
};

RingModel::RingModel(std::shared_ptr<torch::nn::Module> model, RingPolicy policy,
                     std::shared_ptr<World> world)
    : model_(std::move(model)),
      policy_(std::move(policy)),
      world_(std::move(world)),
      compute_(scalar_type(policy_.mp.param)) {
  c10::NoGradGuard no_grad;
  std::set<c10::TensorImpl*> seen;
  std::vector<int64_t> counts;
  std::vector<std::pair<std::string, Tensor>> frozen;
  for (const auto& item : model_->named_parameters()) {
    const Tensor& t = item.value();
    if (!seen.insert(t.unsafeGetTensorImpl()).second) continue;  // tied
    if (!t.requires_grad()) {
      frozen.emplace_back(item.key(), t);
      continue;
    }
    if (!parameters_.empty() && t.scalar_type() != parameters_[0].variable.scalar_type())
      throw Error(ErrorCode::bad_module,
                  "parameter " + item.key() + " has another dtype than those before it")
          .help("give all parameters one storage dtype (model.torch_dtype)");
    parameters_.push_back({item.key(), t, t.sizes().vec(), t.numel()});
    counts.push_back(t.numel());
  }
  at::ScalarType storage = parameters_.empty() ? compute_ : parameters_[0].variable.scalar_type();
  for (Bucket& bucket : make_buckets(counts, policy_.bucket_elements, ring())) {
    parts_.emplace_back();
    parts_.back().layout = std::move(bucket);
  }
  for (Part& part : parts_) adopt(part, storage);
  describe(frozen);
  if (compute_ != storage || scalar_type(policy_.mp.output) != compute_)
    cast_at_the_border(*model_);
}

// Moves the parameters of a bucket into it.
void RingModel::adopt(Part& part, at::ScalarType storage) {
  const Bucket& layout = part.layout;
  at::TensorOptions options = at::TensorOptions().dtype(storage).device(world_->device());
  bool casts = compute_ != storage, given = false;
  part.whole = at::zeros({layout.slice * ring()}, options.dtype(compute_));
  Tensor stored = casts ? at::zeros(part.whole.sizes(), options) : part.whole;
  for (size_t i = 0; i < layout.members.size(); ++i) {
    Parameter& p = parameters_[layout.members[i]];
    if (p.variable.is_meta()) continue;
    given = true;
    stored.narrow(0, layout.offsets[i], p.count).copy_(p.variable.reshape({-1}));
  }
  if (given) {
    world_->everyone()->broadcast(stored, 0).wait();
    if (casts) part.whole.copy_(stored);
  }
  part.values = casts ? mine(part, stored).clone() : mine(part, part.whole);
  part.grads = at::zeros({layout.slice}, options);
  updates_.push_back({part.values, part.grads});
  for (size_t i = 0; i < layout.members.size(); ++i) {
    Parameter& p = parameters_[layout.members[i]];
    Tensor view = part.whole.narrow(0, layout.offsets[i], p.count).view(p.sizes);
    if (p.variable.is_meta())
      p.variable.unsafeGetTensorImpl()->shallow_copy_from(view.getIntrusivePtr());
    else
      p.variable.set_data(view);
    auto bucket = static_cast<size_t>(&part - parts_.data());
    torch::autograd::impl::set_post_acc_grad_hooks(p.variable,
                                                   std::make_unique<GradientHook>(this, bucket, i));
  }
}

// What checkpoints, export and the loading of weights see: the slices, since those are what is
// updated.
void RingModel::describe(const std::vector<std::pair<std::string, Tensor>>& frozen) {
  auto placed = [&](const char* how) {
    std::vector<std::pair<std::string, std::string>> out;
    if (copies() > 1) out.emplace_back(policy_.copies->axis(), "replicate");
    if (ring() > 1) out.emplace_back(policy_.ring->axis(), how);
    return out;
  };
  for (auto part = parts_.rbegin(); part != parts_.rend(); ++part)
    for (size_t i = part->layout.members.size(); i-- > 0;) {
      const Parameter& p = parameters_[part->layout.members[i]];
      Piece piece = piece_of(part->layout, i, p.count, policy_.ring->rank());
      ParallelParameter out;
      out.name = p.name;
      out.global_shape = p.sizes;
      out.region = Region::run(piece.begin, piece.end);
      out.local = part->values.narrow(0, piece.at, piece.end - piece.begin);
      out.grad = part->grads.narrow(0, piece.at, piece.end - piece.begin);
      out.placement = placed("flat");
      described_.push_back(std::move(out));
    }
  for (const auto& [name, tensor] : frozen) {
    auto options = tensor.options().device(world_->device()).dtype(compute_);
    Tensor data =
        tensor.is_meta() ? at::zeros(tensor.sizes(), options) : tensor.detach().to(options);
    if (tensor.is_meta())
      tensor.unsafeGetTensorImpl()->shallow_copy_from(data.getIntrusivePtr());
    else
      const_cast<Tensor&>(tensor).set_data(data);
    ParallelParameter out;
    out.name = name;
    out.local = tensor.detach();
    out.global_shape = tensor.sizes().vec();
    out.region = Region::whole(out.global_shape);
    out.placement = placed("replicate");
    described_.push_back(std::move(out));
  }
}

// Mixed precision: inputs to the dtype of the computation, outputs to the one asked for.
void RingModel::cast_at_the_border(torch::nn::Module& model) const {
  HookHost* host = HookHost::of(model);
  if (host == nullptr)
    throw Error(ErrorCode::bad_module,
                "mixed precision casts inputs and outputs, and " + model.name() + " has no hooks")
        .key("distributed.mp_policy.param_dtype")
        .help(
            "declare the outermost module with MESHWRIGHT_MODULE(...) in place of "
            "TORCH_MODULE(...)")
        .help("set distributed.mp_policy.param_dtype = \"float32\"");
  auto cast = [](at::ScalarType type) {
    return [type](torch::nn::Module&, TensorRefs& tensors) {
      for (Tensor* t : tensors)
        if (t->defined() && at::isFloatingType(t->scalar_type())) *t = t->to(type);
    };
  };
  if (policy_.mp.cast_forward_inputs) host->before_forward.push_back(cast(compute_));
  host->after_forward.push_back(cast(scalar_type(policy_.mp.output)));
}

void RingModel::begin_step() {
  synchronise_ = false;
  for (Parameter& p : parameters_) p.variable.mutable_grad() = Tensor();
  for (Part& part : parts_) {  // an exception may have cut the last step short
    // What is under way ends on all ranks, or the next one would meet it.
    if (part.sum.defined()) part.work.wait();
    part.work = Work();
    part.gradient = part.packed = part.received = part.sum = Tensor();
    part.reduced = false;
  }
}

void RingModel::begin_micro_batch(GradientSync sync) {
  settle();
  synchronise_ = sync == GradientSync::reduce || policy_.reduce_every_micro_batch;
  next_ = 0;
  for (Parameter& p : parameters_) p.arrived = false;
  for (Part& part : parts_) part.waiting = part.layout.members.size();
}

// Called from inside backward, when autograd is done with a parameter.
void RingModel::gradient_ready(size_t bucket, size_t member) {
  c10::NoGradGuard no_grad;
  Part& part = parts_[bucket];
  Parameter& p = parameters_[part.layout.members[member]];
  if (synchronise_ && bucket < next_)
    throw Error(ErrorCode::bad_module,
                "a second gradient of " + p.name +
                    " came after the first was reduced: two recomputed modules use it")
        .key("distributed.activation_checkpointing")
        .help("set distributed.activation_checkpointing = \"none\"");
  gradient_of(part)
      .narrow(0, part.layout.offsets[member], p.count)
      .add_(p.variable.grad().reshape({-1}), 1.0 / static_cast<double>(ring() * copies()));
  p.variable.mutable_grad() = Tensor();
  if (!synchronise_ || p.arrived) return;
  p.arrived = true;
  if (--part.waiting == 0) launch_ready();
}

// Buckets are reduced in one order on all ranks, whatever the order in which they fill. One is
// under way while backward goes on.
void RingModel::launch_ready() {
  for (; next_ < parts_.size() && parts_[next_].waiting == 0; ++next_) {
    if (next_ > 0) collect(parts_[next_ - 1]);
    reduce(parts_[next_]);
  }
}

void RingModel::reduce(Part& part) {
  int64_t me = policy_.ring->rank(), slice = part.layout.slice;
  if (policy_.ring->has_native_reduce_scatter()) {
    part.packed = gradient_of(part);
    part.sum = at::empty({slice}, part.packed.options());
    part.work = policy_.ring->reduce_scatter(part.packed, part.sum);
  } else {
    part.sum = mine(part, gradient_of(part)).clone();
    part.packed = at::cat({part.gradient.narrow(0, 0, me * slice),
                           part.gradient.narrow(0, (me + 1) * slice, (ring() - 1 - me) * slice)});
    part.received = at::empty_like(part.packed);
    part.work = policy_.ring->pairwise_exchange(part.packed, part.received);
  }
  part.gradient = Tensor();
}

// Ends the sum within the ring, begins the one over the copies.
void RingModel::collect(Part& part) {
  if (!part.packed.defined()) return;
  part.work.wait();
  for (int64_t r = 0; part.received.defined() && r + 1 < ring(); ++r)
    part.sum.add_(part.received.narrow(0, r * part.layout.slice, part.layout.slice));
  part.packed = part.received = Tensor();
  if (copies() > 1) part.work = policy_.copies->all_reduce(part.sum);
}

// Ends the reductions of the micro-batch.
void RingModel::settle() {
  c10::NoGradGuard no_grad;
  if (!synchronise_) return;
  for (Part& part : parts_) part.waiting = 0;
  launch_ready();
  synchronise_ = false;
  for (Part& part : parts_) {
    collect(part);
    part.work.wait();
    if (part.reduced)
      part.grads.add_(part.sum);
    else
      part.grads.copy_(part.sum);
    part.reduced = true;
    part.sum = Tensor();
  }
}

// The optimizer wrote the slices: every rank gets those of the others.
void RingModel::after_optimizer_step() {
  c10::NoGradGuard no_grad;
  std::vector<Work> works;
  for (Part& part : parts_) {
    Tensor slot = mine(part, part.whole);
    if (slot.scalar_type() != part.values.scalar_type()) slot.copy_(part.values);
    works.push_back(policy_.ring->all_gather(slot, part.whole));
  }
  for (Work& work : works) work.wait();
}

double RingModel::clip_grad_norm(double max_norm, double scale) {
  std::vector<Tensor> gradients;
  for (const Part& part : parts_) gradients.push_back(part.grads);
  return clip_gradients({{gradients, {policy_.ring}}}, max_norm, scale, world_->device());
}

Tensor RingModel::full_tensor(std::string_view name) {
  for (Part& part : parts_)
    for (size_t i = 0; i < part.layout.members.size(); ++i) {
      const Parameter& p = parameters_[part.layout.members[i]];
      if (p.name != name) continue;
      Tensor all = at::empty(part.whole.sizes(), part.values.options());
      mine(part, all).copy_(part.values);
      policy_.ring->all_gather(mine(part, all), all).wait();
      return all.narrow(0, part.layout.offsets[i], p.count).view(p.sizes).clone();
    }
  for (const ParallelParameter& p : described_)
    if (p.name == name) return p.local.clone();  // frozen
  throw Error(ErrorCode::internal, "the model has no parameter " + std::string(name));
}

}  // namespace

std::unique_ptr<ParallelModel> make_ring_model(std::shared_ptr<torch::nn::Module> model,
                                               RingPolicy policy, std::shared_ptr<World> world) {
  return std::make_unique<RingModel>(std::move(model), std::move(policy), std::move(world));
}

}  // namespace ring_zero
