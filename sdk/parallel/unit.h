// What both kinds of models check and say alike: types of parameters, names of units, and what is
// wrong with a call of a pipeline.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gradient_reducer.h"
#include "meshwright/error.h"
#include "unit_state.h"
#include "unsharded_parameters.h"

namespace meshwright::detail {

// float8 is a floating type too, but nothing adds up in it.
inline bool trains(c10::ScalarType type) {
  return type == c10::kFloat || type == c10::kDouble || type == c10::kHalf ||
         type == c10::kBFloat16;
}

inline std::string sizes_text(c10::ArrayRef<int64_t> sizes) {
  std::string out;
  for (int64_t size : sizes) out += (out.empty() ? "" : ", ") + std::to_string(size);
  return "[" + out + "]";
}

// Indices below `count` that are meant, in their order. `matches(index, name)`.
template <class Matches>
std::vector<size_t> units_meant(const std::vector<std::string>& names, size_t count,
                                const Matches& matches) {
  std::vector<bool> meant(count, names.empty());
  for (const std::string& name : names) {
    bool found = false;
    for (size_t i = 0; i < count; ++i)
      if (matches(i, name)) found = meant[i] = true;
    if (!found)
      throw Error(ErrorCode::internal, "the model has no unit at or in \"" + name + "\"")
          .help("give names of units, or of modules around units");
  }
  std::vector<size_t> out;
  for (size_t i = 0; i < count; ++i)
    if (meant[i]) out.push_back(i);
  return out;
}

inline void check_told(bool told) {
  if (!told)
    throw Error(ErrorCode::internal,
                "units are told to reduce in a step whose micro-batches say for themselves when")
        .help("call begin_micro_batch(GradientSync::when_told) before each forward and backward");
}

inline Error not_reduced(const std::string& units) {
  return Error(ErrorCode::internal,
               "gradients of " + units + " were not reduced after their last backward")
      .help("call reduce_units() for them before end_step()");
}

inline Error reduced_already(const std::string& what) {
  return Error(ErrorCode::not_in_release,
               what +
                   " after a reduction: whole gradients (replicas, and ZeRO levels 0 and 1) are "
                   "reduced once a step")
      .help("run all micro-batches of a step before reduce_units()");
}

inline Error second_gradient(const std::string& parameter) {
  return Error(ErrorCode::bad_module, "a second gradient of " + parameter +
                                          " came after the first was reduced: two recomputed "
                                          "modules use it, or a backward went past its unit")
      .key("distributed.activation_checkpointing")
      .help("set distributed.activation_checkpointing = \"none\"")
      .help("use the parameters of a module in its own forward only");
}

// One sharded unit: its life through forward, backward and step. Where its shards lie is its layout
// (sdk/planning/unit_layout.h); what is gathered, unsharded_parameters.h; what becomes of its
// gradients, gradient_reducer.h.

// One forward of a unit that holds frozen parameters, through its backward. Gradients pass through
// frozen parameters on their way to the unit's inputs and bring nothing that tells of it: its
// backward is over when they have come there, too.
struct Pass {
  int64_t inputs = 0;     // that want gradients and have none yet
  uint64_t backward = 0;  // which of the unit's it is a part of; 0: none yet
};

class Unit {
 public:
  using Parameter = UnitState::Parameter;

  Unit(UnitContext& context, const UnitSpec& spec);

  const UnitLayout& layout() const { return state_.layout; }
  int64_t shard_size() const { return layout().shard_size(); }
  int64_t trainable_size() const { return layout().trainable_size(); }
  // Of the tensors that adopt() takes.
  int64_t shard_elements() const { return state_.shard_elements(); }
  int64_t frozen_elements() const { return state_.frozen_elements(); }
  // The ranks that share one copy of this unit, and their axis.
  Group& group() const { return state_.group(); }
  const std::string& axis() const { return state_.sharding.axis; }
  bool replicated() const { return state_.replicated(); }
  Group* replicas() const { return replicated() ? state_.replicate.get() : nullptr; }
  // Takes its part of the model's flat tensors and the parameters' values; empties the parameters.
  // `frozen`: the shard of what is frozen where that has one of its own, of frozen_type().
  void adopt(const at::Tensor& shard, const at::Tensor& gradient, const at::Tensor& frozen = {});
  // Whole parameters: the same with memory of its own, of which shard() and gradient() may be
  // views.
  void adopt_whole();

  // From now on the gradient, which has memory of its own, is without it where it has no values.
  void lend_gradient_memory();

  void unshard() { unsharded_.unshard(); }  // starts
  void wait_for_unshard() { unsharded_.wait(); }
  void reshard() {  // unless held
    if (!state_.held) free();
  }
  void free() { unsharded_.reshard(); }
  void hold(bool held);
  void leave_shared_memory() { unsharded_.leave_shared_memory(); }
  // After the optimizer. `frozen_stays`: nobody else wrote.
  void refresh(bool frozen_stays) { unsharded_.refresh(frozen_stays); }
  // Whether passes count: only where parameters that lack gradients are freed.
  bool counts_passes() const { return frozen_ && !state_.keeps_unsharded(); }
  void before_backward();
  void open(Pass& pass);             // gradients of its outputs came
  void gradient_passed(Pass& pass);  // one of an input came
  void gradient_ready(size_t parameter);
  std::optional<GradientPlace> gradient_place(size_t parameter);
  void end_backward();  // reduces in a micro-batch that does, else accumulates; reshards
  void settle();   // after a backward: ends what waits for gradients that did not come, reshards
  void abandon();  // after an exception: back to the start of a step
  void begin_step() { reducer_.begin_step(); }
  void reduce_told();  // what has added up
  bool waits() const { return reducer_.waits(); }
  GradientReducer& reducer() { return reducer_; }
  void end_step() { reducer_.end_step(); }

  bool in_backward() const { return in_backward_; }
  const std::vector<Parameter>& parameters() const { return state_.parameters; }
  const MixedPrecision& mp() const { return state_.mp; }
  const at::Tensor& shard() const { return state_.shard; }
  // What the shards of this rank hold of a parameter.
  at::Tensor local(size_t parameter) const;
  const at::Tensor& gradient() const { return state_.gradient; }
  at::ScalarType main_type() const { return state_.main; }
  at::ScalarType frozen_type() const { return state_.frozen_storage; }
  at::ScalarType gradient_type() const { return state_.gradient_type; }
  at::ScalarType compute_type() const { return state_.param; }
  at::ScalarType reduce_type() const { return state_.reduce; }
  at::ScalarType output_type() const { return state_.output; }
  int64_t gathered_bytes() const {
    return layout().size() * static_cast<int64_t>(c10::elementSize(state_.param));
  }
  at::Tensor resident(const Parameter& parameter) const { return unsharded_.resident(parameter); }
  // The whole of one parameter in the storage dtype. Collective.
  at::Tensor full_tensor(size_t parameter);
  bool reshards() const { return state_.reshards(); }

  std::string name;
  torch::nn::Module* module;
  int64_t module_list;
  bool first_stage, last_stage;  // of a pipeline: whose passes alone use it
  bool has_backward = false;     // gradients come to what its last forward gave
  bool encloses = false;         // another unit lies in its module
  bool once_a_step;              // gathered once a step, and kept to its end
  // What trains in a module may be a unit once a step beside that of what is frozen there: from
  // the latter to the former, and back.
  Unit *beside = nullptr, *around = nullptr;
  std::shared_ptr<Pass> pass;  // during its forward
  size_t index = 0;
  bool done = false;           // its backward is over, until its next forward
  int64_t backward_began = 0;  // while tracing

 private:
  void end_if_over();
  void take_gradients();

  UnitState state_;
  UnshardedParameters unsharded_;
  GradientReducer reducer_;
  bool frozen_;  // holds frozen parameters
  bool in_backward_ = false;
  bool taken_ = false;      // this backward's gradients
  int64_t waiting_ = 0;     // gradients that have not come in this backward
  int64_t passing_ = 0;     // passes that are open in it
  uint64_t backwards_ = 0;  // so far
};

}  // namespace meshwright::detail
