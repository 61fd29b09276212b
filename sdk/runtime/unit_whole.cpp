// Flat units: gathers straight into place, parameters that stay whole, and gradients that are summed whole before they are reduced.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>
#include <c10/util/accumulate.h>
#include <c10/util/irange.h>

#include <algorithm>

#include "copies.h"
#include "meshwright/error.h"
#include "meshwright/tensor_parallel.h"
#include "shared_memory.h"
#include "unit.h"

namespace meshwright::detail {

using at::Tensor;

// Borders must fall alike on all tensor-parallel ranks in what these hold alike. Where a parameter is cut unevenly, what is not cut
// comes first, and all ranks cut the unit as the first one does, which has the most.
void Unit::align_parts() {
  const TensorParallel& tensor_parallel = *context_.policy.tensor_parallel;
  int64_t tp = tensor_parallel.group()->size();
  bool uneven = false;
  for (Parameter& p : parameters_) {
    const TensorParallel::Cut* cut = tensor_parallel.find(p.name);
    if (cut == nullptr) continue;
    std::vector<int64_t> sizes = cut->whole;
    int64_t& size = sizes[static_cast<size_t>(cut->dim)];
    uneven = uneven || size % tp != 0;
    size = (size + tp - 1) / tp;
    p.largest = c10::multiply_integers(sizes);
  }
  if (!uneven) return;
  std::stable_sort(parameters_.begin(), parameters_.end(), [&](const Parameter& a, const Parameter& b) {
    auto place = [&](const Parameter& p) { return (p.trainable ? 0 : 2) + (tensor_parallel.find(p.name) != nullptr ? 1 : 0); };
    return place(a) < place(b);
  });
}

void Unit::adopt_whole() {
  c10::NoGradGuard no_grad;
  at::TensorOptions options = at::TensorOptions().device(context_.world->device());
  int64_t me = this->me(), each = trainable_size_;
  whole_ = at::zeros({size_}, options.dtype(storage_));
  if (param_ != storage_) compute_ = at::zeros({size_}, options.dtype(param_));
  Tensor slice = whole_.narrow(0, me * each, each), gradient;
  if (sums()) {
    sums_ = at::zeros({each * shards()}, options.dtype(gradient_type_));
    gradient = sums_.narrow(0, me * each, each);
  } else {
    gradient = at::zeros({each}, options.dtype(gradient_type_));
  }
  adopt(main_ == storage_ ? slice : at::zeros({each}, options.dtype(main_)), gradient);
}

void Unit::gather_in_place() {
  int64_t n = shards(), me = this->me(), each = shard_size_;
  if (n > 1 && !keeps() && reshard && !context_.lasting && each > 0 &&
      maps_gather(*sharding_.shard, each * static_cast<int64_t>(c10::elementSize(param_)))) {
    shares_ = true;
    context_.holding.push_back(this);
    Tensor source = model_.defined() ? model_ : shard_;
    if (source.scalar_type() != param_) source = cast_ = context_.pool->take(each, param_).copy_(source);
    gathering_ = sharding_.shard->all_gather(source, Tensor());
    return;
  }
  // Of units that stay gathered the memory stays too, where buffers are to be made once.
  if (!keeps())
    whole_ = spare_.defined() ? spare_ : context_.pool->take(size_, param_, reshard ? BufferPool::Use::gather : BufferPool::Use::any);
  if (context_.policy.double_buffer && !reshard) spare_ = whole_;
  Tensor own = whole_.narrow(0, me * each, each);
  const Tensor& from = model_.defined() ? model_ : shard_;
  if (!keeps() || main_ != storage_) copy(own, 0, from, 0, each);
  if (n == 1) return;
  Group& group = this->group();
  bool mapped = maps_gather(group, static_cast<int64_t>(own.nbytes()));
  // A back end of the host's memory copies back all that it gathered, the own slot too, which it leaves undefined.
  if (!own.is_cpu() && !group.has_native_reduce_scatter()) cast_ = own.clone();
  if (mapped) context_.holding.push_back(this);
  gathering_ = group.all_gather(own, mapped ? Tensor() : whole_.narrow(0, 0, each * n));
}

// A slot of the shared ring must be free again before the next but one of those behind it is filled.
void Unit::take_turn() {
  turn_ = context_.gathers++;
  for (Unit* unit : std::vector<Unit*>(context_.holding)) {
    if (turn_ - unit->turn_ < 3) continue;
    if (unit->shares_)
      unit->leave_shared_memory();
    else
      unit->ready();
  }
}

void Unit::leave_shared_memory() {
  if (!shares_) return;
  c10::NoGradGuard no_grad;
  if (state_ == State::flying) ready();
  Tensor shared = whole_;
  whole_ = context_.pool->take(size_, param_, BufferPool::Use::gather);
  copy(whole_, 0, shared, 0, size_);
  attach();
  give_back();
}

void Unit::give_back() {
  shares_ = false;
  std::erase(context_.holding, this);
  gathering_ = Work();
}

void Unit::take_in_place() {
  int64_t me = this->me(), each = shard_size_;
  if (shares_) {
    int64_t other = me == 0 ? 1 : 0;
    auto* first = static_cast<char*>(peer(gathering_, other).data_ptr()) - static_cast<size_t>(other * each) * c10::elementSize(param_);
    whole_ = at::from_blob(first, {size_}, at::TensorOptions().dtype(param_));
    return;
  }
  for (int64_t r : c10::irange(shards()))
    if (Tensor shard = peer(gathering_, r); shard.defined()) copy(whole_, r * each, shard, 0, each);
  if (cast_.defined()) copy(whole_, me * each, cast_, 0, each);
  if (compute_.defined()) compute_.copy_(whole_);
}

void Unit::refresh() {
  c10::NoGradGuard no_grad;
  if (model_.defined()) model_.copy_(shard_);
  if (!keeps()) return;
  if (state_ == State::flying) {
    gathering_.wait();
    drop_gather();
  }
  if (state_ == State::here)
    for (Parameter& p : parameters_) p.storage.detach();  // whoever uses them before the next gather is told
  state_ = State::freed;
}

void Unit::begin_step() {
  fresh_ = true;
  for (Parameter& p : parameters_) p.came = false;
}

void Unit::absorb(Parameter& p) {
  Tensor gradient = p.variable.grad();
  p.variable.mutable_grad() = Tensor();
  if (!gradient.defined()) return;
  if (!fresh_)
    throw Error(ErrorCode::bad_module,
                "a second gradient of " + p.name + " came after the first was reduced: two recomputed modules use it")
        .key("distributed.activation_checkpointing")
        .help("set distributed.activation_checkpointing = \"none\"");
  scaled_add(sums_.narrow(0, p.offset, p.count), gradient.contiguous().view({-1}), before_reduce_, !p.came);
  p.came = true;
}

// The step's one reduction. Nothing is copied where the sums have the dtype of the collective and go through sockets or NCCL.
void Unit::reduce_sums() {
  c10::NoGradGuard no_grad;
  if (context_.reducing) context_.reducing->finish_reduce();
  context_.reducing = this;
  reducing_ = true;
  fresh_ = false;
  first_ = true;
  for (const Parameter& p : parameters_)
    if (p.trainable && !p.came) clear(sums_, p.offset, p.count);
  int64_t n = shards(), me = this->me(), each = trainable_size_;
  Group& group = this->group();
  auto in_reduce_type = [&] {
    if (reduce_ == gradient_type_) return sums_;
    Tensor cast = context_.pool->take(sums_.numel(), reduce_, BufferPool::Use::reduce);
    return cast.copy_(sums_);
  };
  target_ = gradient_;
  if (n == 1) {
    if (replicated()) target_ = in_reduce_type();
    finish_reduce();  // nothing to wait for: the copies may start
    return;
  }
  if (group.has_native_reduce_scatter()) {
    packed_ = in_reduce_type();
    received_ = context_.pool->take(each, reduce_, BufferPool::Use::reduce);
    overwrite_ = true;
    exchanging_ = group.reduce_scatter(packed_, received_);
    return;
  }
  if (sums_apart()) target_ = context_.pool->take(each, reduce_).copy_(gradient_);
  if (each > 0 && maps_exchange(group, each * (n - 1) * static_cast<int64_t>(c10::elementSize(reduce_)))) {
    packed_ = stage(group, each * (n - 1), reduce_);
    copy(packed_, 0, sums_, 0, me * each);
    copy(packed_, me * each, sums_, (me + 1) * each, (n - 1 - me) * each);
  } else {
    packed_ = in_reduce_type();
    received_ = context_.pool->take(each * (n - 1), reduce_, BufferPool::Use::reduce);
  }
  exchanging_ = group.pairwise_exchange(packed_, received_);
  if (after_reduce_ != 1) target_.mul_(after_reduce_);
}

void Unit::reduce_late() {
  if (sums() && fresh_) reduce_sums();
}

}  // namespace meshwright::detail
