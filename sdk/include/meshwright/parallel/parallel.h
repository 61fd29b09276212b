// What the third hook gets and returns.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "meshwright/dtype.h"
#include "meshwright/error.h"
#include "meshwright/parallel/group.h"
#include "meshwright/region.h"
#include "meshwright/strategy.h"

namespace torch::nn {
class Module;
}

namespace meshwright {

// The outline of a live module: names, shapes, lists. For models that no config.json describes.
// Local.
MESHWRIGHT_API ModelOutline outline_of(torch::nn::Module& model);

struct ParallelizeRequest {
  std::shared_ptr<torch::nn::Module>
      model;  // parameters on the meta device get storage but no values; others keep theirs
  const ModelOutline& outline;
  const MeshPlan& mesh;
  const TpPlan& tp;
  const StrategyConfig& config;
  std::shared_ptr<World> world;
  // What plan_sharding() answered for this rank and outline when the job was planned; nullptr: it
  // is asked for the live model (plan_of() in parallelize.h).
  const ShardingPlan* plan = nullptr;
  std::shared_ptr<const Later> later = {};
};

// One parameter as this rank holds it. Checkpoints, export and weight loading read this list.
struct ParallelParameter {
  std::string name;
  at::Tensor local;  // this rank's part, a view of what the optimizer updates; may be empty
  at::Tensor grad;   // its gradient after end_step, of the same shape; undefined when frozen
  std::vector<int64_t> global_shape;
  // What `local` is of the whole, in the shape that regions are stored in: a box; where layouts are
  // flat, a run of elements, or of the elements of a box where tensor parallelism cut the parameter
  // first.
  Region region;
  std::vector<std::pair<std::string, std::string>> placement =
      {};  // axis of size > 1 -> "shard(d)" | "replicate"
  std::shared_ptr<const Later> later = {};
};

class TensorParallel;   // meshwright/parallel/tensor_parallel.h
class ExpertParallel;   // meshwright/parallel/expert_parallel.h
class ContextParallel;  // meshwright/parallel/context_parallel.h

// What the optimizer updates: equally long flat tensors. Order and sizes are fixed after
// parallelize().
struct FlatParameterGroup {
  at::Tensor values, grads;
  std::shared_ptr<const Later> later = {};
};

// Where a parameter's elements lie among what the optimizer updates.
struct UpdatePlace {
  size_t group = SIZE_MAX;  // in update_groups(); SIZE_MAX: in none, since it is frozen or this
                            // rank holds nothing of it
  int64_t begin = 0;        // of its first element in the group's tensors
};

// Which value of a state a rank holds, where replicas that are otherwise equal each have their own:
// the residual of error feedback, say.
struct StateReplica {
  // What a run begins with that has another number of replicas than its checkpoint. mean: the mean
  // over those of the checkpoint, which keeps the mean of what error feedback still owes. zeros.
  // own_or_first: its own where the checkpoint has one, else that of the first.
  enum class Resize : uint8_t { mean, zeros, own_or_first };
  int64_t index = 0, count = 1;  // rank() and size() of the group of replicas
  Resize resize = Resize::mean;
};

// A tensor that a strategy keeps beside the parameters, and that lives on in checkpoints.
struct StateTensor {
  std::string state;  // what it is, "outer_momentum": a-z, 0-9, _; not a name of an optimizer's
  std::string name;   // a parameter's, or one of its own
  std::vector<int64_t> global_shape;
  Region region;  // what `local` is of the whole; together the ranks hold all of it
  // Contiguous, in the shape of the region; what a checkpoint is read into. Undefined where this
  // rank holds nothing of it.
  at::Tensor local;
  // nullopt: ranks that hold the same elements hold the same values. Else checkpoints have the
  // values of each replica, those of the same index being equal.
  std::optional<StateReplica> replica = {};
  DType dtype = DType::float32;  // of `local`, also where that is undefined
  std::shared_ptr<const Later> later = {};
};

// Who wrote the values of update_groups().
struct ValuesWritten {
  enum class By : uint8_t { optimizer, initialization, weights, checkpoint };
  By by = By::optimizer;
  int64_t steps = 0;  // optimizer's updates done, this one included
  // Of a checkpoint: the states of state_tensors() that it lacks; their tensors are as they were.
  std::vector<std::string> missing = {};
  // Of a checkpoint: each replica along independent_axis() got the values that it had, not those of
  // the first one.
  bool own_values = true;
  std::shared_ptr<const Later> later = {};
};

// Why a checkpoint is about to be made: at its turn, as the best so far, because somebody asked
// for it, because the run is told to stop, or because it ends.
enum class SaveReason : uint8_t { scheduled, best, asked, stop, end };

// What a micro-batch does with its gradients: the last one of a step reduces them over the ranks,
// those before it add up. when_told: they add up until PipelineUnits::reduce_units().
enum class GradientSync : uint8_t { accumulate, reduce, when_told };

// What a pipeline needs of a model, whose passes of several micro-batches interleave in it:
// begin_micro_batch(when_told) comes before each forward and each backward. `units`: names of units
// or of modules around them; {}: all. Both throw Error(internal) for a name without units.
class MESHWRIGHT_API PipelineUnits {
 public:
  virtual ~PipelineUnits();
  // Units with parameters, outer ones last. Local.
  virtual std::vector<std::string> unit_names() const = 0;
  // Local. Held units are gathered at their next use and stay until let go or the step ends; not
  // those that are to be freed after every forward.
  virtual void hold_units(const std::vector<std::string>& units, bool held) = 0;
  // Collective, alike on all ranks: starts to reduce what has added up. end_step() ends with
  // Error(internal) where something was not. Whole gradients (replicas, ZeRO levels 0 and 1) reduce
  // once a step.
  virtual void reduce_units(const std::vector<std::string>& units) = 0;
  // Whether each backward's gradients are reduced by themselves, not those of a step together.
  virtual bool reduces_every_micro_batch() const { return false; }
};

// A model under a strategy. One training loop drives every strategy through it. Not thread-safe.
class MESHWRIGHT_API ParallelModel {
 public:
  ParallelModel() = default;
  ParallelModel(const ParallelModel&) = delete;
  ParallelModel& operator=(const ParallelModel&) = delete;
  virtual ~ParallelModel();

  // A step is begin_step, then begin_micro_batch() before each forward, then end_step after the
  // last backward. Gradients are means over the data-parallel ranks. begin_step also recovers from
  // a step that an exception cut short.
  virtual void begin_step() = 0;
  virtual void begin_micro_batch(GradientSync sync) = 0;
  virtual void end_step() = 0;  // collective: gradients are final afterwards
  virtual const std::vector<ParallelParameter>& parameters() const = 0;
  virtual const std::vector<FlatParameterGroup>& update_groups() const = 0;
  // After the optimizer wrote update_groups().values: what is computed from them (low-precision
  // copies) is refreshed.
  virtual void after_optimizer_step() = 0;
  // Called on all ranks alike whenever the values were written, before after_optimizer_step(): may
  // communicate and write to the values itself. Returns whether it did; the optimizer's main
  // weights are made anew from them then. Default: false.
  virtual bool values_written(const ValuesWritten& written);
  // The same before a checkpoint of that many steps is made; after_optimizer_step() follows where
  // it wrote to the values.
  virtual bool before_save(SaveReason reason, int64_t steps);
  // What checkpoints hold beside parameters and the optimizer's states, never exported, and filled
  // from them in any layout. Which ones is fixed after parallelize(); names are the same on every
  // rank.
  virtual std::vector<StateTensor> state_tensors() const;
  // The axis along which replicas hold values of their own, and optimizer's states; "": all
  // replicas are equal. A checkpoint has the first one's as its weights and all others beside them.
  // Along it gradients are not averaged, and clip_grad_norm() may differ.
  virtual std::string independent_axis() const;
  // Collective. Multiplies all gradients by `scale`, clips them to `max_norm` (not when <= 0), and
  // returns the global L2 norm before clipping, the same on all ranks; each parameter counts once
  // (semantics 8.3).
  virtual double clip_grad_norm(double max_norm, double scale = 1.0) = 0;
  // Both for a loop that itself waits for the device between gradients and their norm, and whose
  // optimizer's kernels multiply gradients as they read them: a wait of the host, and a pass over
  // all gradients, less. Collective. After end_step_deferred() gradients that lie on the host may
  // still be on their way there: it has them once it has waited for the current stream of the
  // device. Where all gradients are on a device, or some are float16, clip_grad_norm_deferred()
  // leaves them as they are, and `left` is what all of update_groups() are still to be multiplied
  // with: finite and above zero; else `left` is 1. Defaults: end_step() and clip_grad_norm().
  virtual void end_step_deferred();
  virtual double clip_grad_norm_deferred(double max_norm, double scale, double& left);
  // Collective. The whole parameter in its storage dtype, on every rank.
  virtual at::Tensor full_tensor(std::string_view name) = 0;
  // Collective. Runs `body` with every parameter whole (under tensor parallelism: this rank's part
  // of it), and restores the shards after it, also when it throws. What `body` writes is lost.
  virtual void summon_full_parameters(const std::function<void()>& body) = 0;
  // The averaging group of the data: losses and token counts are summed over it.
  virtual std::shared_ptr<Group> data_group() = 0;
  // What tensor parallelism did to the model; nullptr: nothing.
  virtual std::shared_ptr<TensorParallel> tensor_parallel() const;
  // How the tokens of a sample lie on ranks; nullptr: each rank has whole samples.
  const std::shared_ptr<ContextParallel>& context_parallel() const { return context_parallel_; }
  void set_context_parallel(std::shared_ptr<ContextParallel> made) {
    context_parallel_ = std::move(made);
  }

  // What a pipeline needs beside all this; nullptr: the model does not run in stages.
  virtual PipelineUnits* pipeline_units();
  // Growth: an interface by id, or nullptr.
  virtual void* extension(uint32_t id);

 private:
  std::shared_ptr<ContextParallel> context_parallel_;
  std::shared_ptr<const Later> later_;  // room for what later versions add
};

// Parallel to model.parameters(). Local.
MESHWRIGHT_API std::vector<UpdatePlace> update_places(const ParallelModel& model);
// The parts of flat tensors that lie beside model.update_groups() (`flat`: one a group, as long as
// its values), by parameter: the state tensors of a strategy that keeps such. Parameters that are
// not trained have none. Local.
MESHWRIGHT_API std::vector<StateTensor> state_beside(const ParallelModel& model,
                                                     const std::string& state,
                                                     const std::vector<at::Tensor>& flat,
                                                     std::optional<StateReplica> replica = {});

}  // namespace meshwright
