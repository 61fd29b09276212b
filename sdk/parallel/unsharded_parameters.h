// The gathered parameters of one unit, and the memory behind the module's own tensors.
//
//             unshard()                 wait()
//   sharded ------------> unsharding ------------> unsharded
//      ^                       |                       |
//      +------- cancel() ------+------ reshard() ------+
//
// * sharded: the module's tensors have no memory; a use of them throws and names the parameter. The
//   shard may be written to.
// * unsharding: a gather is under way. It reads the shard, which must stay as it is; it ends in
//   wait(), or in cancel() where nobody used it.
// * unsharded: the module's tensors lie in one buffer. It belongs to this unit, or, on one host, to
//   all ranks (see leave_shared_memory()).
//
// Resharding frees at once and is no state of its own. Parameters that stay whole (ZeRO levels 0 to
// 2) are resharded by refresh() alone.
#pragma once

#include "unit_state.h"

namespace meshwright::detail {

class UnshardedParameters {
 public:
  explicit UnshardedParameters(UnitState& unit) : unit_(unit) {}
  UnshardedParameters(const UnshardedParameters&) = delete;
  UnshardedParameters& operator=(const UnshardedParameters&) = delete;

  // Empties the module's tensors: from now on they have the dtype of computation and memory while
  // unsharded.
  void take_over();
  // Whole parameters: memory for all of them; gives that of what trains, of which the shard may be
  // a view.
  at::Tensor allocate_whole();
  // Whole parameters: a frozen one, as every rank has it.
  at::Tensor resident(const UnitState::Parameter& parameter) const {
    return frozen_.narrow(0, parameter.offset - trained_whole(), parameter.count)
        .view(parameter.sizes);
  }

  void unshard();              // starts, if the parameters are neither here nor under way
  void wait();                 // unshards and waits
  void reshard();              // frees, if unsharded
  void cancel();               // waits for a gather that nobody used, and drops it
  void forget();               // after an exception: the same of a gather that cannot be waited for
  void leave_shared_memory();  // for memory of its own, where other ranks read it too
  // The shard has new values: what was made from it is made again; also what was made from frozen
  // values unless these stay.
  void refresh(bool frozen_stays);
  void wait_for_gather() { gathering_.wait(); }

 private:
  enum class State : uint8_t { sharded, unsharding, unsharded };
  void unshard_in_place();
  void unshard_each();
  void drop_casts() { scratch_ = cast_ = at::Tensor(); }
  at::Tensor take_whole();
  void copy_in();
  // Whether what is gathered lies where it is used.
  bool gathers_in_place() const { return unit_.layout.in_place() || unit_.joins_parts; }
  void take_in_place();
  void attach();
  void take_turn();
  void give_back();
  void drop();
  // The shard itself serves as the whole: one rank, and nothing to cast or bring.
  bool direct() const {
    return unit_.shards() == 1 && unit_.main == unit_.param && !unit_.frozen_beside &&
           unit_.shard.device() == unit_.device();
  }
  // Whole parameters: elements before those of what is frozen.
  int64_t trained_whole() const { return unit_.layout.trainable_size() * unit_.shards(); }

  UnitState& unit_;
  State state_ = State::sharded;
  Work gathering_;
  at::Tensor whole_;    // the gathered buffer
  at::Tensor scratch_;  // shards in the order of the ranks
  at::Tensor cast_;     // the own shard in the dtype of computation
  at::Tensor compute_;  // whole parameters: `whole_` in the dtype of computation
  // Whole parameters: the frozen ones, which nothing gathers, in the dtypes of storage and of
  // computation; undefined where these are the same.
  at::Tensor frozen_, frozen_compute_;
  bool frozen_cast_ = false;  // the second has the values of the first
  at::Tensor spare_;          // memory of a unit that is not resharded
  bool shares_ =
      false;  // gathered in memory that all ranks of a host read: each writes its own part only
  int64_t turn_ = 0;  // which of the model's gathers that was
};

}  // namespace meshwright::detail
