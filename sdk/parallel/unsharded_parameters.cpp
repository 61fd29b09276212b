#include "unsharded_parameters.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/util/irange.h>

#include <utility>

#include "meshwright/error.h"
#include "sdk/comm/activity.h"
#include "sdk/comm/joint_collectives.h"
#include "sdk/comm/shared_memory.h"
#include "sdk/nn/buffers.h"

namespace meshwright::detail {

using at::Tensor;

void UnshardedParameters::take_over() {
  for (UnitState::Parameter& p : unit_.parameters) {
    if (unit_.keeps_unsharded() && !p.trainable && !p.variable.is_meta())
      resident(p).copy_(p.variable);
    p.storage = LentStorage(
        p.variable, unit_.param, unit_.device(),
        "parameter " + p.name + " was used outside its unit \"" + unit_.name +
            "\": its memory is freed between the forward and the backward of the unit. Use it "
            "inside the unit's forward "
            "or within summon_full_parameters(), or set reshard_after_forward = false.");
  }
}

Tensor UnshardedParameters::allocate_whole() {
  at::TensorOptions options = at::TensorOptions().device(unit_.device());
  const int64_t trained = trained_whole(), rest = unit_.layout.size() - trained;
  whole_ = at::zeros({trained}, options.dtype(unit_.storage));
  frozen_ = at::zeros({rest}, options.dtype(unit_.frozen_storage));
  if (unit_.param != unit_.storage) compute_ = at::zeros({trained}, options.dtype(unit_.param));
  if (unit_.param != unit_.frozen_storage)
    frozen_compute_ = at::zeros({rest}, options.dtype(unit_.param));
  return whole_;
}

void UnshardedParameters::unshard() {
  if (state_ != State::sharded) return;
  c10::NoGradGuard no_grad;
  const Purpose purpose("gathering the parameters of ", unit_.name);
  state_ = State::unsharding;
  take_turn();
  if (unit_.layout.in_place()) return unshard_in_place();
  if (direct()) return;
  if (unit_.joins_parts) return unshard_each();
  Tensor source = unit_.sent();
  if (unit_.frozen_beside || source.scalar_type() != unit_.param ||
      source.device() != unit_.device()) {
    cast_ = unit_.context.pool->take(unit_.layout.shard_size(), unit_.param);
    unit_.bring_sent(cast_);
    source = cast_;
  }
  if (unit_.shards() == 1) return;
  if (maps_gather(unit_.group(), static_cast<int64_t>(source.nbytes())))
    unit_.context.mapped.push_back(this);
  else
    scratch_ = unit_.context.pool->take(unit_.layout.shard_size() * unit_.shards(), unit_.param);
  name_memory(scratch_, "gathered parameters of ", unit_.name);
  gathering_ = unit_.group().all_gather(source, scratch_);
}

// Flat units: shards in the order of the ranks, padding behind them, are the gathered parameters.
void UnshardedParameters::unshard_in_place() {
  UnitContext& context = unit_.context;
  Group& group = unit_.group();
  const bool keeps = unit_.keeps_unsharded();
  int64_t n = unit_.shards(), me = unit_.me(), each = unit_.layout.shard_size();
  if (n > 1 && !keeps && unit_.reshards() && !context.lasting && each > 0 &&
      maps_gather(group, each * static_cast<int64_t>(c10::elementSize(unit_.param)))) {
    shares_ = true;
    context.mapped.push_back(this);
    Tensor source = unit_.sent();
    if (source.scalar_type() != unit_.param)
      source = cast_ = context.pool->take(each, unit_.param).copy_(source);
    gathering_ = group.all_gather(source, Tensor());
    return;
  }
  // Of units that stay gathered the memory stays too, where buffers are to be made once.
  if (!keeps)
    whole_ = spare_.defined() ? spare_
                              : context.pool->take(unit_.layout.size(), unit_.param,
                                                   unit_.reshards() ? BufferPool::Use::gather
                                                                    : BufferPool::Use::any);
  if (context.policy.buffers.rotating && !unit_.reshard) spare_ = whole_;
  name_memory(whole_, "gathered parameters of ", unit_.name);
  Tensor own = whole_.narrow(0, me * each, each);
  if (!keeps || unit_.main != unit_.storage) copy(own, 0, unit_.sent(), 0, each);
  if (n == 1) return;
  bool mapped = maps_gather(group, static_cast<int64_t>(own.nbytes()));
  // A back end of the host's memory copies back all that it gathered, the own slot too, which it
  // leaves undefined.
  if (!own.is_cpu() && !group.has_native_reduce_scatter()) cast_ = own.clone();
  if (mapped) context.mapped.push_back(this);
  gathering_ = group.all_gather(own, mapped ? Tensor() : whole_.narrow(0, 0, each * n));
}

// A gather for each parameter, from its part of the shard, or from its own slot where that has to
// be cast first.
void UnshardedParameters::unshard_each() {
  whole_ = take_whole();
  name_memory(whole_, "gathered parameters of ", unit_.name);
  if (unit_.shard.device() != unit_.device()) {  // in one copy
    cast_ = unit_.context.pool->take(unit_.layout.shard_size(), unit_.param);
    unit_.bring_sent(cast_);
  }
  std::vector<Tensor> parts, wholes;
  Copies casts;
  for (const ShardSlice& slice : unit_.slices[static_cast<size_t>(unit_.me())]) {
    const UnitState::Parameter& p = unit_.parameters[slice.parameter];
    wholes.push_back(whole_.narrow(0, p.offset, p.count));
    const Tensor source =
        cast_.defined() ? cast_.narrow(0, slice.at, slice.count) : unit_.sent(slice);
    if (source.scalar_type() == unit_.param) {
      parts.push_back(source);
    } else {
      parts.push_back(wholes.back().narrow(0, slice.from, slice.count));
      casts.add(wholes.back(), slice.from, source, 0, slice.count);
    }
  }
  casts.flush();
  gathering_ = all_gather_each(unit_.group(), parts, wholes);
}

void UnshardedParameters::wait() {
  unshard();
  if (state_ == State::unsharded) return;
  c10::NoGradGuard no_grad;
  try {
    gathering_.wait();
  } catch (Error& error) {
    throw error.note("while gathering the parameters of unit " + unit_.name);
  }
  if (unit_.layout.in_place()) {
    take_in_place();
  } else if (direct()) {
    whole_ = unit_.shard;
  } else if (!gathers_in_place()) {
    whole_ = take_whole();
    copy_in();
  }
  if (!shares_) give_back();
  drop_casts();
  attach();
  state_ = State::unsharded;
}

// Two buffers that units share are not for those that are held.
Tensor UnshardedParameters::take_whole() {
  return unit_.context.pool->take(unit_.layout.size(), unit_.param,
                                  unit_.held ? BufferPool::Use::any : BufferPool::Use::gather);
}

void UnshardedParameters::copy_in() {
  Copies copies;
  auto from = [&](const Tensor& shard, int64_t rank) {
    for (const ShardSlice& slice : unit_.slices[static_cast<size_t>(rank)])
      copies.add(whole_, unit_.parameters[slice.parameter].offset + slice.from, shard, slice.at,
                 slice.count);
  };
  int64_t me = unit_.me(), each = unit_.layout.shard_size();
  from(cast_.defined() ? cast_ : unit_.sent(), me);
  for (int64_t r : c10::irange(unit_.shards()))
    if (r != me)
      from(scratch_.defined() ? scratch_.narrow(0, r * each, each) : peer(gathering_, r), r);
  copies.flush();
}

void UnshardedParameters::take_in_place() {
  int64_t me = unit_.me(), each = unit_.layout.shard_size();
  if (shares_) {
    int64_t other = me == 0 ? 1 : 0;
    auto* first = static_cast<char*>(peer(gathering_, other).data_ptr()) -
                  static_cast<size_t>(other * each) * c10::elementSize(unit_.param);
    whole_ = at::from_blob(first, {unit_.layout.size()}, at::TensorOptions().dtype(unit_.param));
    return;
  }
  for (int64_t r : c10::irange(unit_.shards()))
    if (Tensor shard = peer(gathering_, r); shard.defined()) copy(whole_, r * each, shard, 0, each);
  if (cast_.defined()) copy(whole_, me * each, cast_, 0, each);
  if (compute_.defined()) compute_.copy_(whole_);
  if (!std::exchange(frozen_cast_, true) && frozen_compute_.defined())
    frozen_compute_.copy_(frozen_);
}

void UnshardedParameters::attach() {
  const Tensor &trained = compute_.defined() ? compute_ : whole_,
               &rest = frozen_compute_.defined() ? frozen_compute_ : frozen_;
  const bool apart = unit_.keeps_unsharded();
  const c10::DeviceGuard guard(unit_.device());  // once for all of them
  for (UnitState::Parameter& p : unit_.parameters) {
    const bool frozen = apart && !p.trainable;
    const Tensor& here = frozen ? rest : trained;
    auto* memory = unit_.layout.size() == 0 ? nullptr : static_cast<char*>(here.mutable_data_ptr());
    const int64_t at = p.offset - (frozen ? trained_whole() : 0);
    p.storage.attach(memory + static_cast<size_t>(at) * here.element_size());
  }
}

void UnshardedParameters::reshard() {
  if (state_ != State::unsharded || unit_.keeps_unsharded()) return;
  for (UnitState::Parameter& p : unit_.parameters) p.storage.detach();
  whole_ = Tensor();
  give_back();
  state_ = State::sharded;
}

void UnshardedParameters::cancel() {
  if (state_ != State::unsharding) return;
  gathering_.wait();
  drop();
}

void UnshardedParameters::forget() {
  if (state_ == State::unsharding) drop();
  drop_casts();
}

void UnshardedParameters::drop() {
  give_back();
  drop_casts();
  if (gathers_in_place() && !unit_.keeps_unsharded()) whole_ = Tensor();
  state_ = State::sharded;
}

// A slot of the shared ring must be free again before the ring comes round to it, also where its
// unit was gathered ahead and this micro-batch leaves it out: else all ranks wait for each other.
void UnshardedParameters::take_turn() {
  turn_ = unit_.context.gathers++;
  for (UnshardedParameters* other : std::vector<UnshardedParameters*>(unit_.context.mapped)) {
    if (turn_ - other->turn_ <= unit_.context.ahead) continue;
    if (other->shares_)
      other->leave_shared_memory();
    else
      other->wait();
  }
}

void UnshardedParameters::leave_shared_memory() {
  if (!shares_) return;
  c10::NoGradGuard no_grad;
  if (state_ == State::unsharding) wait();
  Tensor shared = whole_;
  whole_ = take_whole();
  copy(whole_, 0, shared, 0, unit_.layout.size());
  attach();
  give_back();
}

void UnshardedParameters::give_back() {
  shares_ = false;
  std::erase(unit_.context.mapped, this);
  gathering_ = Work();
}

void UnshardedParameters::refresh(bool frozen_stays) {
  c10::NoGradGuard no_grad;
  frozen_cast_ = frozen_cast_ && frozen_stays;
  if (unit_.model_shard.defined()) unit_.model_shard.copy_(unit_.shard);
  cancel();
  if (!unit_.keeps_unsharded()) return reshard();  // left so by a step that failed, say
  if (state_ == State::unsharded)
    for (UnitState::Parameter& p : unit_.parameters)
      p.storage.detach();  // whoever uses them before the next gather is told
  state_ = State::sharded;
}

}  // namespace meshwright::detail
