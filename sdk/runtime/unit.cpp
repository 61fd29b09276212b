#include "unit.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>

#include "copies.h"
#include "meshwright/error.h"
#include "shared_memory.h"

namespace meshwright::detail {

using at::Tensor;

namespace {

// After autograd took a gradient, or would have if there were one.
struct GradientHook : torch::autograd::PostAccumulateGradHook, GradientKeeper {
  GradientHook(Unit* u, size_t p) : unit(u), parameter(p) {}
  void operator()(const Tensor&) override { unit->gradient_ready(parameter); }
  std::optional<GradientPlace> place() override { return unit->gradient_place(parameter); }
  Unit* unit;
  size_t parameter;
};

}  // namespace

// The largest absolute value is NaN where one of them is.
Nonfinite Nonfinite::in(const std::string& parameter, const Tensor& gradient) {
  if (!gradient.defined() || gradient.numel() == 0) return {};
  auto largest = gradient.abs().max().item<double>();
  return std::isfinite(largest) ? Nonfinite() : Nonfinite{parameter, std::isinf(largest)};
}

GradientKeeper::~GradientKeeper() = default;

GradientKeeper* gradient_keeper(const Tensor& parameter) {
  if (!torch::autograd::impl::hooks(parameter).empty()) return nullptr;
  // autograd::grad(), or a backward towards some tensors only.
  const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
  if (wanted != nullptr && !wanted->empty()) return nullptr;
  return dynamic_cast<GradientKeeper*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
}

Unit::Unit(UnitContext& context, const UnitSpec& spec)
    : name(spec.name),
      module(spec.module),
      reshard(spec.reshard_after_forward),
      list(spec.list),
      context_(context),
      sharding_(spec.sharding.value_or(UnitSharding{context.policy.shard, context.policy.shard_axis})),
      replicate_(spec.sharding ? nullptr : context.policy.replicate),
      mp_(spec.mp.value_or(context.policy.mp)),
      param_(scalar_type(mp_.param)),
      reduce_(scalar_type(mp_.reduce)),
      output_(scalar_type(mp_.output)) {
  for (bool trainable : {true, false})
    for (const auto& [full_name, variable] : spec.parameters) {
      if (variable.requires_grad() != trainable) continue;
      if (variable.dim() == 0)
        throw Error(ErrorCode::bad_module, "parameter " + full_name + " has no dimension, so its rows cannot be shared out")
            .help("give it the shape [1]");
      Parameter p;
      p.name = full_name;
      p.variable = variable;
      p.sizes = variable.sizes().vec();
      p.count = variable.numel();
      p.trainable = trainable;
      storage_ = variable.scalar_type();
      parameters_.push_back(std::move(p));
      trainable_count_ += trainable;
    }
  const ShardedPolicy& policy = context_.policy;
  if (policy.layout == ShardLayout::flat && policy.tensor_parallel) align_parts();
  main_ = policy.main_weights ? scalar_type(*policy.main_weights) : storage_;
  gradient_type_ = policy.main_gradients ? scalar_type(*policy.main_gradients) : storage_;
  in_place_ = policy.layout == ShardLayout::flat &&
              (keeps() || trainable_count_ == 0 || trainable_count_ == static_cast<int64_t>(parameters_.size()));
  lay_out();
  double n = spec.sharding ? sharding_.divisor : static_cast<double>(context_.averaged());
  // float16 alone can overflow in the sum: half of the division before it, half after.
  if (policy.average == ShardedPolicy::Average::in_sum) before_reduce_ = reduce_ == at::kHalf ? 1 / std::sqrt(n) : 1;
  if (policy.average == ShardedPolicy::Average::before_sum) before_reduce_ = 1 / n;
  after_reduce_ = policy.average == ShardedPolicy::Average::in_sum ? 1 / n / before_reduce_ : 1;
}

void Unit::lay_out() {
  int64_t n = shards();
  pieces_.resize(static_cast<size_t>(n));
  if (context_.policy.layout == ShardLayout::rows) {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      Parameter& p = parameters_[i];
      p.offset = size_;
      // Before the cut dimension lie `outer` blocks, of which each rank has the same rows; behind it `width` elements a row.
      auto dim = static_cast<size_t>(cut_dim(p));
      int64_t rows = p.sizes[dim], outer = 1;
      for (size_t d = 0; d < dim; ++d) outer *= p.sizes[d];
      int64_t width = rows == 0 || outer == 0 ? 0 : p.count / rows / outer, chunk = (rows + n - 1) / n;
      if (dim > 0 && rows % n != 0)
        throw Error(ErrorCode::model_does_not_fit, "dimension " + std::to_string(dim) + " of " + p.name + " is " + std::to_string(rows) +
                                                       ", which the " + std::to_string(n) + " ranks of " + sharding_.axis +
                                                       " do not divide");
      for (int64_t r = 0; r < n; ++r) {
        int64_t begin = std::min(rows, r * chunk), end = std::min(rows, (r + 1) * chunk);
        for (int64_t o = 0; o < outer && end > begin; ++o)
          pieces_[static_cast<size_t>(r)].push_back(
              {i, (o * rows + begin) * width, shard_size_ + o * chunk * width, (end - begin) * width});
      }
      size_ += p.count;
      shard_size_ += outer * chunk * width;
      if (p.trainable) trainable_size_ = shard_size_;
    }
    return;
  }
  // flat: the trainable and the frozen parameters are each one buffer, cut evenly. Where all are whole, the frozen ones never move.
  for (bool trainable : {true, false}) {
    int64_t begin = size_, total = 0;
    for (Parameter& p : parameters_)
      if (p.trainable == trainable) {
        p.offset = size_;
        size_ += p.count;
        total += p.count;
      }
    if (!trainable && keeps()) return;
    total = 0;
    for (const Parameter& p : parameters_)
      if (p.trainable == trainable) total += n == 1 ? p.count : std::max(p.count, p.largest);
    int64_t each = (total + n - 1) / n;
    if (in_place_) size_ = begin + each * n;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Parameter& p = parameters_[i];
      if (p.trainable != trainable) continue;
      for (int64_t r = 0; r < n; ++r) {
        int64_t low = std::max(p.offset - begin, r * each), high = std::min(p.offset - begin + p.count, (r + 1) * each);
        if (high > low) pieces_[static_cast<size_t>(r)].push_back({i, low - (p.offset - begin), shard_size_ + low - r * each, high - low});
      }
    }
    shard_size_ += each;
    if (trainable) trainable_size_ = shard_size_;
  }
}

void Unit::adopt(const Tensor& shard, const Tensor& gradient) {
  c10::NoGradGuard no_grad;
  shard_ = shard;
  gradient_ = gradient;
  shard_.zero_();
  for (const Piece& piece : pieces(me())) {
    const Tensor& variable = parameters_[piece.parameter].variable;
    if (!variable.is_meta()) copy(shard_, piece.at, variable.detach().contiguous().view({-1}), piece.from, piece.count);
  }
  if (!keeps() && main_ != storage_) model_ = shard_.to(storage_);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = parameters_[i];
    if (keeps() && !p.trainable && !p.variable.is_meta()) resident(p).copy_(p.variable);
    p.storage =
        LentStorage(p.variable, param_, context_.world->device(),
                    "parameter " + p.name + " was used outside its unit \"" + name +
                        "\": its memory is freed between the forward and the backward of the unit. Use it inside the unit's forward "
                        "or within summon_full_parameters(), or set reshard_after_forward = false.");
    if (p.trainable) torch::autograd::impl::set_post_acc_grad_hooks(p.variable, std::make_unique<GradientHook>(this, i));
  }
}

void Unit::gather() {
  if (state_ != State::freed) return;
  c10::NoGradGuard no_grad;
  state_ = State::flying;
  take_turn();
  if (in_place_) return gather_in_place();
  if (direct()) return;
  Tensor source = model_.defined() ? model_ : shard_;
  if (source.scalar_type() != param_ || source.device() != context_.world->device()) {
    cast_ = context_.pool->take(shard_size_, param_);
    cast_.copy_(source, /*non_blocking=*/true);
    source = cast_;
  }
  if (shards() > 1) {
    if (!maps_gather(*sharding_.shard, static_cast<int64_t>(source.nbytes())))
      scratch_ = context_.pool->take(shard_size_ * shards(), param_);
    gathering_ = sharding_.shard->all_gather(source, scratch_);
  }
}

void Unit::copy_in() {
  Copies copies;
  auto from = [&](const Tensor& shard, int64_t rank) {
    for (const Piece& piece : pieces(rank))
      copies.add(whole_, parameters_[piece.parameter].offset + piece.from, shard, piece.at, piece.count);
  };
  int64_t me = this->me();
  from(cast_.defined() ? cast_ : model_.defined() ? model_ : shard_, me);
  for (int64_t r : c10::irange(shards()))
    if (r != me) from(scratch_.defined() ? scratch_.narrow(0, r * shard_size_, shard_size_) : peer(gathering_, r), r);
  copies.flush();
}

void Unit::ready() {
  gather();
  if (state_ == State::here) return;
  c10::NoGradGuard no_grad;
  try {
    gathering_.wait();
  } catch (Error& error) {
    throw error.note("while gathering the parameters of unit " + name);
  }
  if (in_place_) {
    take_in_place();
  } else if (direct()) {
    whole_ = shard_;
  } else {
    whole_ = context_.pool->take(size_, param_, BufferPool::Use::gather);
    copy_in();
  }
  if (!shares_) give_back();
  scratch_ = cast_ = Tensor();
  attach();
  state_ = State::here;
}

void Unit::attach() {
  const Tensor& here = compute_.defined() ? compute_ : whole_;
  auto* memory = size_ == 0 ? nullptr : static_cast<char*>(here.mutable_data_ptr());
  for (Parameter& p : parameters_) p.storage.attach(memory + static_cast<size_t>(p.offset) * here.element_size());
}

void Unit::release() {
  if (state_ != State::here || keeps()) return;
  for (Parameter& p : parameters_) p.storage.detach();
  whole_ = Tensor();
  give_back();
  state_ = State::freed;
}

void Unit::before_backward() {
  if (in_backward_) return;
  in_backward_ = true;
  waiting_ = trainable_count_;
  ready();
}

void Unit::gradient_ready(size_t index) {
  c10::NoGradGuard no_grad;
  Parameter& p = parameters_[index];
  if (context_.policy.check_own_nan && context_.own_nonfinite.parameter.empty())
    context_.own_nonfinite = Nonfinite::in(p.name, p.variable.grad());
  if (sums()) absorb(p);
  // A backward that never passed the unit's output (autograd::backward on a parameter itself) is settled at the end of the step.
  if (!in_backward_) return;
  if (--waiting_ == 0) reduce();
}

std::optional<GradientPlace> Unit::gradient_place(size_t index) {
  Parameter& p = parameters_[index];
  bool fits = in_backward_ && shards() == 1 && !sums() && !replicated() && context_.synchronise && !context_.policy.check_own_nan &&
              reduce_ == param_ && gradient_.scalar_type() == param_ && gradient_.device() == context_.world->device() &&
              !p.variable.grad().defined() && !p.held.defined();
  if (!fits) return std::nullopt;
  for (const Piece& piece : pieces(0)) {
    if (piece.parameter != index || piece.count != p.count) continue;
    GradientPlace out{gradient_.narrow(0, piece.at, piece.count).view(p.sizes), before_reduce_ * after_reduce_, p.placed || !fresh_};
    p.placed = true;
    return out;
  }
  return std::nullopt;
}

Tensor Unit::take_gradient(Parameter& p) {
  Tensor gradient = p.variable.grad();
  if (gradient.defined()) {
    p.variable.mutable_grad() = Tensor();
    gradient = gradient.contiguous().view({-1});
  }
  if (p.held.defined()) {
    if (gradient.defined()) p.held.add_(gradient);
    gradient = std::move(p.held);
    p.held = Tensor();
  }
  return gradient;
}

void Unit::keep_gradients() {
  if (reduce_ == param_) return;  // autograd adds up in place
  for (Parameter& p : parameters_) {
    if (!p.trainable || !p.variable.grad().defined()) continue;
    Tensor gradient = take_gradient(p);
    p.held = gradient.scalar_type() == reduce_ ? gradient : gradient.to(reduce_);
  }
}

void Unit::reduce() {
  c10::NoGradGuard no_grad;
  if (context_.world->trace().enabled && list >= 0)
    context_.world->trace().span(Trace::Lane::compute, "backward " + name, backward_began, Trace::now());
  waiting_ = 0;
  in_backward_ = false;
  done = true;
  if (sums()) {
    if (context_.synchronise && context_.policy.overlap_reduction) reduce_sums();
    return;
  }
  if (!context_.synchronise) {
    keep_gradients();
    release();
    return;
  }
  // One reduction is under way at a time: the previous unit's had this unit's backward to finish in.
  if (context_.reducing) context_.reducing->finish_reduce();
  finish_replication();
  context_.reducing = this;
  int64_t n = shards(), me = this->me();
  bool remote = sharding_.shard->has_native_reduce_scatter() && n > 1;
  // As in torch's FSDP2, ranks are summed in the reduce dtype, replicas too, and the sum is cast to the gradients' dtype at its end. A
  // back end that sums brings the sum itself. Replicas are summed over what this reduction adds, so an earlier sum of the step must stay
  // apart; and on the ranks' device.
  bool apart = replicated() ? !fresh_ || reduce_ != gradient_type_ || gradient_.device() != context_.world->device()
                            : n > 1 && !remote && sums_apart();
  first_ = fresh_;
  target_ = apart ? context_.pool->take(trainable_size_, reduce_) : gradient_;
  bool first = apart || fresh_;
  fresh_ = false;
  int64_t slots = remote ? n : n - 1;
  bool mapped = n > 1 && trainable_size_ > 0 &&
                maps_exchange(*sharding_.shard, trainable_size_ * slots * static_cast<int64_t>(c10::elementSize(reduce_)));
  if (mapped)
    packed_ = stage(*sharding_.shard, trainable_size_ * slots, reduce_);
  else if (n > 1)
    packed_ = context_.pool->take(trainable_size_ * slots, reduce_, BufferPool::Use::reduce);
  // Where nothing is written below, padding and missing gradients are zero.
  int64_t padding_from = 0;
  auto pad_target = [&](int64_t until) {
    if (first) clear(target_, padding_from, until - padding_from);
  };
  std::vector<Tensor> gradients(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].trainable) gradients[i] = take_gradient(parameters_[i]);
  if (!remote) {
    for (const Piece& piece : pieces(me)) {
      if (piece.at >= trainable_size_) continue;
      pad_target(piece.at);
      padding_from = piece.at + piece.count;
      const Tensor& gradient = gradients[piece.parameter];
      Tensor into = target_.narrow(0, piece.at, piece.count);
      bool placed = std::exchange(parameters_[piece.parameter].placed, false);
      if (gradient.defined())
        scaled_add(into, gradient.narrow(0, piece.from, piece.count), before_reduce_ * after_reduce_, first && !placed);
      else if (first && !placed)
        into.zero_();
    }
    pad_target(trainable_size_);
  }
  bool scales = packed_.defined() && packed_.is_cpu();
  Copies copies(scales ? before_reduce_ : 1);
  for (int64_t r = 0, slot = 0; n > 1 && r < n; ++r) {
    if (r == me && !remote) continue;
    int64_t base = trainable_size_ * slot++, end = 0;
    for (const Piece& piece : pieces(r)) {
      if (piece.at >= trainable_size_) continue;
      clear(packed_, base + end, piece.at - end);
      end = piece.at + piece.count;
      if (gradients[piece.parameter].defined())
        copies.add(packed_, base + piece.at, gradients[piece.parameter], piece.from, piece.count);
      else
        clear(packed_, base + piece.at, piece.count);
    }
    clear(packed_, base + end, trainable_size_ - end);
  }
  copies.flush();
  gradients.clear();
  release();
  reducing_ = true;
  if (n > 1) {
    if (before_reduce_ != 1 && !scales) packed_.mul_(before_reduce_);
    if (remote) {
      received_ = context_.pool->take(trainable_size_, reduce_, BufferPool::Use::reduce);
      exchanging_ = sharding_.shard->reduce_scatter(packed_, received_);
    } else {
      if (!mapped) received_ = context_.pool->take(trainable_size_ * (n - 1), reduce_, BufferPool::Use::reduce);
      exchanging_ = sharding_.shard->pairwise_exchange(packed_, received_);
    }
    if (remote && first) clear(target_, 0, trainable_size_);
  }
}

void Unit::finish_reduce() {
  if (!reducing_) return;
  c10::NoGradGuard no_grad;
  reducing_ = false;
  exchanging_.wait();
  for (int64_t r = 0; r < shards(); ++r)
    if (Tensor from = peer(exchanging_, r); from.defined()) scaled_add(target_, from, after_reduce_, false);
  exchanging_ = Work();
  int64_t slots = received_.defined() && trainable_size_ > 0 ? received_.numel() / trainable_size_ : 0;
  for (int64_t r = 0; r < slots; ++r, overwrite_ = false)
    scaled_add(target_, received_.narrow(0, r * trainable_size_, trainable_size_), after_reduce_, overwrite_);
  packed_ = received_ = Tensor();
  if (context_.reducing == this) context_.reducing = nullptr;
  if (replicated())
    replicating_ = replicate_->all_reduce(target_);
  else
    finish_replication();  // nothing to wait for
}

void Unit::finish_replication() {
  if (!target_.defined() || reducing_) return;
  c10::NoGradGuard no_grad;
  replicating_.wait();
  // Whole gradients are averaged here where nothing is sharded, others when they were packed.
  double scale = sums() && shards() == 1 ? after_reduce_ : 1;
  if (!target_.is_same(gradient_))
    scaled_add(gradient_, target_, scale, first_);
  else if (scale != 1)
    gradient_.mul_(scale);
  target_ = Tensor();
}

void Unit::settle() {
  if (in_backward_) reduce();
  if (state_ == State::flying && !keeps()) {  // gathered ahead and never used; the next step's values will be others
    gathering_.wait();
    drop_gather();
  }
  release();
}

void Unit::drop_gather() {
  give_back();
  scratch_ = cast_ = Tensor();
  if (in_place_ && !keeps()) whole_ = Tensor();
  state_ = State::freed;
}

void Unit::end_step() {
  finish_reduce();
  finish_replication();
  if (fresh_) gradient_.zero_();
}

void Unit::abandon() {
  try {
    gathering_.wait();
    exchanging_.wait();
    replicating_.wait();
    gathering_ = Work();
    exchanging_ = Work();
  } catch (const Error&) {
    // The step failed already; the groups are of no use any more, and the next call will say so.
  }
  packed_ = received_ = target_ = Tensor();
  if (state_ == State::flying) drop_gather();
  scratch_ = cast_ = Tensor();
  release();
  in_backward_ = reducing_ = overwrite_ = false;
  for (Parameter& p : parameters_) p.placed = false;
  context_.reducing = nullptr;
  context_.own_nonfinite = {};
  begin_step();
  for (Parameter& p : parameters_) {
    p.held = Tensor();
    p.variable.mutable_grad() = Tensor();
  }
}

Tensor Unit::whole(size_t parameter) {
  c10::NoGradGuard no_grad;
  const Parameter& p = parameters_[parameter];
  if (keeps() && !p.trainable) return resident(p).clone();
  Tensor out = at::zeros({p.count}, shard_.options());
  Tensor all = shard_;
  if (shards() > 1) {
    Tensor mine = shard_.to(context_.world->device()), gathered = at::empty({shard_size_ * shards()}, mine.options());
    sharding_.shard->all_gather(mine, gathered).wait();
    copy(gathered, me() * shard_size_, mine, 0, shard_size_);
    all = gathered;
  }
  for (int64_t r : c10::irange(shards()))
    for (const Piece& piece : pieces(r))
      if (piece.parameter == parameter) copy(out, piece.from, all, r * shard_size_ + piece.at, piece.count);
  return out.view(p.sizes);
}

}  // namespace meshwright::detail
