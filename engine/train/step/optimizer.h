// The learning rate of every step, and AdamW and SGD by ATen's fused kernels, over the flat tensors
// that a strategy hands out.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/job/parameter_groups.h"
#include "meshwright/options.h"
#include "meshwright/outline.h"
#include "meshwright/parallel/parallel.h"

namespace torch::nn {
class Module;
}

namespace meshwright {
class Trainer;
struct OwnOptimizer;
namespace plan {
struct JobPlan;
}
}  // namespace meshwright

namespace meshwright::train {

// Step s counts from 0. Warm-up: lr * (s + 1) / warmup. After it the style's decay, which reaches
// min_lr at the last step, where that comes after the warm-up; wsd keeps lr until the last tenth of
// all steps and then falls linearly. constant ignores min_lr.
class Schedule {
 public:
  Schedule(const Options& optimizer, const Options& scheduler, int64_t max_steps);
  double at(int64_t step) const;

 private:
  enum class Style : uint8_t { constant, linear, cosine, wsd };
  Style style_;
  double lr_, min_lr_;
  int64_t warmup_, max_steps_;
};

// A run of a flat group's elements.
struct UpdateRange {
  size_t group = 0;  // in ParallelModel::update_groups()
  int64_t begin = 0, count = 0;
  bool operator==(const UpdateRange&) const = default;
};
// Elements that are updated alike.
struct UpdateClass {
  double lr_factor = 1, weight_decay = 0;
  std::vector<UpdateRange> ranges;
  int64_t began = 0;  // updates of the run before the first one of these elements
};

// State is kept group by group, beside the values it belongs to. `state()` gives it for
// checkpoints.
//
// Main weights: where optimizer.main_dtype is wider than what a strategy hands out, the optimizer
// keeps weights of that dtype and updates them and its state in it; the values are these weights,
// rounded. This works for every strategy, since it concerns flat tensors alone.
class Optimizer {
 public:
  Optimizer(std::optional<at::ScalarType> main_type, double weight_decay)
      : main_type_(main_type), weight_decay_(weight_decay) {}
  // To update the same elements in the same dtype.
  struct As {
    const Optimizer& other;
  };
  explicit Optimizer(As as) : Optimizer(as.other.main_type_, as.other.weight_decay_) {
    classes_ = as.other.classes_;
  }
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer() = default;
  // What is updated how; each element of the groups is of one class. Without it all are updated
  // alike, by optimizer.weight_decay.
  void set_classes(std::vector<UpdateClass> classes) { classes_ = std::move(classes); }
  const std::vector<UpdateClass>& classes() const { return classes_; }
  // One update of every group, whose gradients are multiplied with `factor`, above zero, first: in
  // the same pass where they have the dtype of the weights. Not collective.
  void step(const std::vector<FlatParameterGroup>& groups, double lr, double factor = 1);
  struct State {
    std::string name;  // "exp_avg", "exp_avg_sq", "momentum"
    // One per group, as long as its values and of the dtype of its weights; none before the first
    // step.
    std::vector<at::Tensor> tensors;
  };
  virtual std::vector<State> state() = 0;
  // Makes the state that the first step would make, all zero: to be filled from a checkpoint.
  virtual void allocate(const std::vector<FlatParameterGroup>& groups) = 0;
  virtual const char* name() const = 0;  // as in optimizer.name
  int64_t steps = 0;                     // updates done
  bool in_use = false;                   // by a step, though it made no update, or a checkpoint
  // Of them, those before a parameter's first one, by its name in checkpoints; absent: none. What
  // was frozen begins late. The classes hold the same numbers.
  std::map<std::string, int64_t> began;

  // The dtype in which weights that are stored in `values` are updated: optimizer.main_dtype where
  // that is wider.
  at::ScalarType weight_type(at::ScalarType values) const;
  bool has_main(const FlatParameterGroup& group) const {
    return weight_type(group.values.scalar_type()) != group.values.scalar_type();
  }
  // What is updated of a group: its main weights, made from the values when they are first asked
  // for, or the values themselves.
  at::Tensor weights(const std::vector<FlatParameterGroup>& groups, size_t group);
  // Those that were made: one per group, or undefined.
  const std::vector<at::Tensor>& main_weights() const { return main_; }
  // Writes main weights that somebody has filled into the values;
  // ParallelModel::after_optimizer_step() is the caller's.
  void round_weights(const std::vector<FlatParameterGroup>& groups);
  // The other way: makes main weights from values that the strategy has written.
  void take_over(const std::vector<FlatParameterGroup>& groups);

 protected:
  // The update of number `steps`, whose state is allocated.
  virtual void update_all(const std::vector<FlatParameterGroup>& groups, double lr) = 0;
  // What a kernel updates at once: weights of one class, gradients of their dtype, and of each list
  // of states what belongs to them.
  struct Call {
    const UpdateClass& alike;
    std::vector<at::Tensor> weights, gradients;
    std::vector<std::vector<at::Tensor>> states;
    std::optional<at::Tensor> divisor;  // that the kernel divides the gradients by
  };
  using Kernel = std::function<void(Call& call)>;
  // One call a class where gradients have the weights' dtype; else piece by piece, with a copy of
  // the piece's gradients alone (on a device that needs no copy: whole). `states`: lists beside the
  // groups.
  void for_each_call(const std::vector<FlatParameterGroup>& groups,
                     const std::vector<std::vector<at::Tensor>*>& states, const Kernel& kernel);
  void extend(std::vector<at::Tensor>& state, const std::vector<FlatParameterGroup>& groups);

 private:
  // Before the first update: values that changed since main weights were made from them are taken
  // over.
  void catch_up(const std::vector<FlatParameterGroup>& groups);
  void update(const UpdateClass& alike, const std::vector<FlatParameterGroup>& groups,
              const std::vector<std::vector<at::Tensor>*>& states, const Kernel& kernel);
  // What is updated, element by element: `values`, of the same weights, where they are rounded from
  // main weights, else undefined.
  struct Elements {
    at::Tensor weights, gradients;
    std::vector<at::Tensor> states;
    at::Tensor values;
    Elements part(int64_t begin, int64_t count) const;
  };
  // What is left of a class behind the last whole vectors of its ranges: an element's update may
  // not depend on where it lies, since ranks that hold the same parameter hold others beside it.
  void update_tails(const UpdateClass& alike, std::vector<Elements> tails, const Kernel& kernel);
  const at::Tensor& piece_memory(at::ScalarType type, at::Device device, int64_t count);
  const std::optional<at::Tensor>& divisor(at::Device device);
  std::optional<at::ScalarType> main_type_;
  double weight_decay_;
  double factor_ = 1;                  // of this update's gradients
  std::optional<at::Tensor> divisor_;  // 1 / factor_, on the device, once it was asked for
  std::vector<UpdateClass> classes_;
  std::vector<at::Tensor> main_;    // one per group, or undefined
  std::vector<at::Tensor> pieces_;  // memory for a piece's gradients, one per dtype and device
};

// One that a program hands over, updating what `before` was to update. Throws Error(conflict).
std::unique_ptr<Optimizer> make_own_optimizer(OwnOptimizer own, const Optimizer& before);

// Multiplies the gradients in place; 1 does nothing.
void multiply_gradients(const std::vector<FlatParameterGroup>& groups, double factor);

// From the table [optimizer]. Throws Error(out_of_range).
std::unique_ptr<Optimizer> make_optimizer(const Options& table);

// What [[optimizer.group]] does to a model that runs: which parameters it freezes, and which
// elements of the flat tensors that a strategy hands out are updated alike.

// Before the model is made parallel. Freezes in `module` and `outline` what groups freeze, and
// gives parameters the dtypes of group_parameters(). A plan that knows no model gets the warnings.
// Throws Error(conflict) where nothing is left that trains.
plan::ParameterGroups freeze_parameters(const config::Config& config, ModelOutline& outline,
                                        torch::nn::Module& module, plan::JobPlan& plan);

// The classes of the optimizer, which has the model's update_groups(): as ranges of them, since
// each parameter's part of a shard is a run of its elements. What lies between parameters, the
// padding, goes with the one before it. `stages`: the outline of a pipeline's rank.
std::vector<UpdateClass> update_classes(const ParallelModel& model, const ModelOutline* stages,
                                        const plan::ParameterGroups& groups);

// These classes, cut so that each parameter begins where `began` says (Optimizer::began).
std::vector<UpdateClass> classes_begun(const ParallelModel& model, const ModelOutline* stages,
                                       const std::vector<UpdateClass>& classes,
                                       const std::map<std::string, int64_t>& began);

}  // namespace meshwright::train
