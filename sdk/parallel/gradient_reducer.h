// The gradients of one unit on their way from autograd into its shard's gradient.
//
// A micro-batch that does not reduce calls accumulate(): what autograd left waits in the reduce
// dtype. One that does calls pack(), which takes all of that, and then start(); the sum over the
// ranks is under way until finish(), which starts the one over replicas, which ends in
// finish_replication(). At most one reduction of a model is under way: the previous unit's has this
// unit's backward to finish in. When to reduce is the caller's to say: at the end of the unit's
// backward, or later.
//
// Units that sum whole gradients (ZeRO levels 0 and 1) call absorb() for each gradient and
// reduce_accumulated() once a step; reduce_once() is the same for who tells them when. Beside the
// backward reduce_in_turn() starts them in the order of UnitContext::turns, whatever the order in
// which they end: where nothing is gathered, ranks may run other units than their peers do.
//
// A unit that no reducing backward passed is reduced by reduce_late() at the end of the step, in
// the order of turns, with what earlier micro-batches left and zeros where that is nothing. Whether
// this rank holds a gradient is not asked, since another may hold one: ranks agree on the units
// that have not reduced (semantics 3.4), not on those that hold something. Where every unit ran in
// the last micro-batch this sends nothing. What comes after its unit's reduction is an error.
//
// Between begin_step() and the first reduction the gradient is of no value (fresh); after it, what
// reductions bring is added.
#pragma once

#include <optional>

#include "sdk/nn/weight_gradients.h"
#include "unit_state.h"

namespace meshwright::detail {

class GradientReducer {
 public:
  explicit GradientReducer(UnitState& unit);
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // Whole gradients: makes their memory and returns this rank's slice of it; else memory for the
  // slice alone.
  at::Tensor allocate();
  void begin_step();
  void accumulate();
  void absorb(UnitState::Parameter& parameter);
  // Where a function may write the gradient of a parameter itself; nullopt: autograd shall bring
  // it.
  std::optional<GradientPlace> place(size_t parameter);
  void pack();
  void start();
  void reduce_accumulated();
  void reduce_in_turn();
  void reduce_once();
  // Trainable parameters of which nothing was reduced in this step, or of which something came
  // since.
  bool waits() const;
  void reduce_late();  // before end_step()
  void finish();       // waits and sums; replicas then start to add up
  void finish_replication();
  void end_step();  // a unit nobody reduced has zero gradients
  bool reducing() const { return reducing_; }
  void wait_all();  // for what is under way
  void abandon();   // after an exception: back to the start of a step

 private:
  // This rank's gradient of a parameter, earlier micro-batches included; undefined when there is
  // none.
  at::Tensor take_gradient(UnitState::Parameter& parameter);
  // A sum of gradients as they are kept would round more than the reduce dtype allows.
  bool sums_apart() const { return wider(unit_.reduce, unit_.gradient_type); }
  // Whether something of a parameter waits for a reduction.
  static bool holds(const UnitState::Parameter& parameter);
  bool remote() const { return unit_.shards() > 1 && unit_.group().has_native_reduce_scatter(); }
  void start_sum();
  bool packs() const { return !unit_.joins_parts || before_ != 1; }
  GradientPlace beside(UnitState::Parameter& parameter) const;
  void leave_unpacked(std::vector<at::Tensor> gradients);
  void pack_own(const std::vector<at::Tensor>& gradients, bool first);
  void pack_for_others(const std::vector<at::Tensor>& gradients);

  UnitState& unit_;
  double before_ = 1, after_ = 1;     // factors of gradients before and after the sum
  double within_ = 1;                 // and of what a collective sums, in place of both
  at::Tensor packed_, received_;      // what goes out and what comes in
  std::vector<at::Tensor> unpacked_;  // gradients that go out from where they lie, by parameter
  at::Tensor target_;  // what this reduction adds up in: the gradient, or memory apart from it
  at::Tensor sums_;    // whole gradients, one after the other
  Work exchanging_, replicating_;
  bool mapped_ = false;  // packed_ lies in shared memory
  bool reducing_ = false;
  bool fresh_ = true;    // no reduction of this step has begun
  bool ready_ = false;   // whole gradients: waits for its turn
  bool first_ = true;    // the reduction under way is the first one of its step
  bool writes_ = false;  // what is received first overwrites the target
};

}  // namespace meshwright::detail
