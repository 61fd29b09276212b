// The engine as a library: train any torch::nn::Module under the strategy that a TOML file (or
// code) chooses, inside your own main().
//
//   meshwright::Job job = meshwright::Job::from_file("job.toml");  // or Job() and set() alone
//   job.set("distributed.strategy", "\"ddp\"");
//   auto world = meshwright::join_world(job);  // the launcher's ranks; alone without one
//   Net net;                                   // declared with MESHWRIGHT_MODULE
//   meshwright::Trainer trainer(job, world, net.ptr());
//   for (int64_t s = 0; s < trainer.max_steps(); ++s)
//     trainer.step([&](int64_t m) { return meshwright::MicroBatchLoss{loss_of(net, s, m), 8}; });
//
// Nothing here installs signal handlers, exits or changes global state, but for the number of
// threads and LibTorch's deterministic switch when the job asks for them. All failures are
// meshwright::Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "meshwright/nn/module.h"
#include "meshwright/parallel/parallel.h"

namespace meshwright {

class Trainer;

namespace plan {
struct Job;
struct JobPlan;
}  // namespace plan
namespace train {
class Optimizer;
class Routers;
class Stages;
class StepMonitor;
Optimizer& optimizer_of(Trainer& trainer);  // the engine's own, for its checkpoints
StepMonitor& monitor_of(Trainer& trainer);  // the engine's own, for what a run says of its steps
Routers& routers_of(Trainer& trainer);      // the engine's own, for what its loop knows of samples
struct Evaluation;
struct Evaluator;
}  // namespace train

// A checked configuration with its strategy. Values are those of the TOML file's keys.
class MESHWRIGHT_API Job {
 public:
  // Throws the first Error of the file; `overrides` are "a.b=c", as --set takes them.
  static Job from_file(const std::string& path, const std::vector<std::string>& overrides = {});
  static Job from_text(const std::string& toml, const std::vector<std::string>& overrides = {});
  Job();  // every key at its default
  Job(Job&&) noexcept;
  Job& operator=(Job&&) noexcept;
  ~Job();
  // Overrides a key; `value` as in TOML ("2", "\"fsdp2\""). Checked at once. Throws Error; a
  // Trainer has read its keys when it is made, so that it is Error(conflict) while one lives.
  Job& set(const std::string& key, const std::string& value);

  const Options& table(const std::string& name) const;  // "optimizer", "distributed.fsdp2"
  const std::vector<std::string>& notices() const;      // notices and warnings of the file
  plan::Job& impl() const { return *impl_; }

 private:
  std::string text_;
  std::string path_;
  std::vector<std::string> overrides_;
  std::unique_ptr<plan::Job> impl_;
  std::vector<std::string> notices_;
  friend class Trainer;
  std::shared_ptr<const bool> used_ = std::make_shared<const bool>(true);  // shared with Trainers
  void load();
};

// Joins the ranks named by the environment (torchrun, plain, Slurm, Open MPI variables), or makes a
// world of one. Collective. Compares `facts` of all ranks before any group exists. Throws
// Error(bad_rank_environment | rendezvous_failed | ranks_disagree | device_unavailable).
MESHWRIGHT_API std::shared_ptr<World> join_world(
    const Job& job, const std::vector<std::pair<std::string, std::string>>& facts = {});

// One micro-batch's loss: the sum over its targets, and how many there were.
struct MicroBatchLoss {
  at::Tensor sum;     // 0-dim, float; of a pipeline's stages but the last: their hidden states
  int64_t count = 0;  // may be 0; the same on all stages
  // What the sum is divided by, over all of the step: the sum of the targets' weights; not set:
  // `count`.
  std::optional<double> weight = {};
  // Tokens that were read for these targets, and positions; what pads a sample is left out. Not
  // set: `count`.
  std::optional<int64_t> tokens = {}, positions = {};
};

// What any rank may raise and all learn of in the same step, at no collective of its own.
enum class RankSignal : uint8_t { stop, background_done, background_failed, save };
inline constexpr size_t kVotes = 4;

// How often the routers of one mixture-of-experts block chose each of its experts in a step, on all
// ranks.
struct ExpertLoad {
  std::string block;                        // the module's name
  std::vector<int64_t> tokens;              // an expert
  int64_t active = 1;                       // experts a token
  MESHWRIGHT_API double imbalance() const;  // the largest number over the mean; 1: even
};

struct StepResult {
  int64_t step = 0;      // from 0
  double loss = 0;       // mean over all targets of the step, all ranks, by their weights
  double grad_norm = 0;  // L2, before clipping
  double lr = 0;
  int64_t count = 0;      // targets of the step, all ranks
  int64_t tokens = 0;     // that were read for them; what pads samples is none of them
  int64_t positions = 0;  // that were read; a token behind the last target of its document is one
  // How many ranks had voted so when the step's losses were summed: the same number on every rank.
  int64_t votes(RankSignal vote) const { return vote_counts[static_cast<size_t>(vote)]; }
  std::array<int64_t, kVotes> vote_counts{};
  std::vector<ExpertLoad> experts;  // a block; empty without experts
};

// Elements that an optimizer updates alike: a part of what this rank holds, flat.
struct ParamGroup {
  at::Tensor values;                // the main weights, where optimizer.main_dtype keeps some
  at::Tensor grads;                 // of the same dtype; may be changed
  std::vector<at::Tensor> states;   // in the order of OwnOptimizer::states; zeros at first
  double lr = 0, weight_decay = 0;  // of this step, with the factors of [[optimizer.group]]
  int64_t step = 1;                 // updates of these elements, this one included
};

// An optimizer of one's own. What becomes of an element may follow from nothing but that element,
// its gradient and its states: how parameters are cut into groups differs between layouts.
struct OwnOptimizer {
  std::string name;                 // in checkpoints; no run goes on with another one's states
  std::vector<std::string> states;  // "exp_avg": a-z, 0-9, _; kept in checkpoints, in any layout
  std::function<void(const ParamGroup& group)> step;
};

class MESHWRIGHT_API Trainer {
 public:
  // Collective: plans the mesh, parallelizes. `outline`: of a known model family; else made from
  // the module. `expected_count`: targets of a full micro-batch, the scale that gradients are
  // summed at (any positive constant, the same on all ranks).
  Trainer(Job& job, std::shared_ptr<World> world, std::shared_ptr<torch::nn::Module> model,
          std::optional<ModelOutline> outline = {}, int64_t expected_count = 1);
  ~Trainer();

  // Collective. `forward(micro)` is called for each micro-batch of this rank. Throws
  // Error(nonfinite) before the optimizer's update when run.stop_on_nonfinite is set,
  // Error(bad_module) under a pipeline.
  using Forward = std::function<MicroBatchLoss(int64_t micro)>;
  StepResult step(const Forward& forward);
  // The same, also under a pipeline: called for each stage of this rank and each micro-batch, in
  // the order of the schedule. `hidden`: what the stage before gave; undefined for the first one,
  // which reads its tokens as the last one its targets. current_stage() (meshwright/nn/stage.h)
  // says which it is; without a pipeline it is all of the model.
  using StageForward = std::function<MicroBatchLoss(int64_t micro, const at::Tensor& hidden)>;
  StepResult step(const StageForward& forward);
  // Before the first step and load(); Error(conflict) later, or for a name that does not do.
  // In place of optimizer.name, betas, eps and momentum: all else of [optimizer] holds, and the
  // plan counts the states of optimizer.name.
  void set_optimizer(OwnOptimizer optimizer);
  // In place of optimizer.lr and [lr_scheduler]: the learning rate of a step, counted from 0. The
  // same on all ranks, also in a run that goes on. step() throws Error(out_of_range) for one below
  // 0 or not finite.
  void set_learning_rate(std::function<double(int64_t step)> lr) { learning_rate_ = std::move(lr); }
  // Called in every step right before the optimizer writes (not where run.skip_step_above_z leaves
  // the update out): until then the values are those of the step before, and may be read by other
  // threads.
  void before_update(std::function<void()> hook) { before_update_ = std::move(hook); }
  // Local: counted once, in the step that follows or the one whose `forward` calls this.
  void vote(RankSignal vote) { votes_[static_cast<size_t>(vote)] = 1; }
  // Collective. The mean loss over micro-batches without gradients, and without what routers of
  // experts add to it in a step; NaN where there is no target. Every rank makes the same number of
  // calls of `forward`.
  double evaluate(int64_t micro_batches, const Forward& forward);
  double evaluate(int64_t micro_batches, const StageForward& forward);

  // Collective. Writes <folder>/step_N, N the steps done: every rank its own shards, published by a
  // rename once all are on the disk. Throws Error(output_unwritable), the same on every rank; what
  // was there before is untouched then.
  void save(const std::string& folder);
  // Collective. Continues from a checkpoint (its folder, or one that holds some), of whatever
  // strategy and number of ranks: weights, optimizer, buffers, step; generators when the number of
  // ranks is the same. Throws Error(no_checkpoint | bad_checkpoint | checkpoint_mismatch) on every
  // rank.
  void load(const std::string& path);

  ParallelModel& model() { return *model_; }
  const ParallelModel& model() const { return *model_; }
  torch::nn::Module& module() { return *module_; }
  const ModelOutline& outline() const { return *outline_; }  // of the whole model
  World& world() { return *world_; }
  const World& world() const { return *world_; }
  const plan::JobPlan& plan() const { return *plan_; }
  // Micro-batches of a step on this rank, and samples of each; under a pipeline those of its
  // stages.
  int64_t accumulation() const { return accumulation_; }
  int64_t local_batch() const { return local_batch_; }
  train::Stages* stages() { return stages_.get(); }  // the engine's own; nullptr: no pipeline
  int64_t data_parallel_size() const { return dp_; }
  int64_t data_parallel_rank() const { return dp_rank_; }
  int64_t max_steps() const { return max_steps_; }
  int64_t next_step() const { return step_; }
  void set_next_step(int64_t step) { step_ = step; }
  // Collective. Tells the model that the values were written, other than by step(): by
  // initialization, from weights or from a checkpoint.
  void tell_written(const ValuesWritten& written);
  void before_save(SaveReason reason);  // collective: as ParallelModel says

 private:
  friend train::Optimizer& train::optimizer_of(Trainer& trainer);
  friend struct train::Evaluator;
  friend train::StepMonitor& train::monitor_of(Trainer& trainer);
  friend train::Routers& train::routers_of(Trainer& trainer);
  struct Parts;
  struct Sums {  // of micro-batches; the loss is on the device: reading it would make the host wait
    at::Tensor loss;
    double count = 0, weight = 0, tokens = 0, positions = 0;
    void add(const MicroBatchLoss& loss, double weighs);
  };
  struct Totals {
    double loss, count, weight, tokens, positions;
    std::array<int64_t, kVotes> votes;
    at::Tensor more, more_on_device;  // float64, [n]
  };
  // The largest of all ranks, or NaN if one is not finite.
  double largest_norm(double mine);
  Totals totals(const Sums& sums, bool with_votes, const at::Tensor& more = {});
  Totals evaluate_totals(int64_t micro_batches, const StageForward& forward);
  StageForward alone(const Forward& forward) const;
  void train_micro_batches(const StageForward& forward, double assumed, Sums& sums);
  void train_stages(const StageForward& forward, double assumed, Sums& sums);
  std::shared_ptr<const bool> job_used_;
  std::shared_ptr<World> world_;
  std::shared_ptr<torch::nn::Module> module_;
  std::unique_ptr<ModelOutline> outline_;
  std::unique_ptr<plan::JobPlan> plan_;
  std::unique_ptr<Parts> parts_;
  std::unique_ptr<ParallelModel> model_;
  std::unique_ptr<train::Optimizer> optimizer_;
  std::unique_ptr<train::Routers> routers_;
  std::unique_ptr<train::Stages> stages_;
  std::shared_ptr<Group> data_;
  int64_t accumulation_ = 1, local_batch_ = 1, dp_ = 1, dp_rank_ = 0, max_steps_ = 0, step_ = 0,
          expected_ = 1;
  std::function<void()> before_update_;
  std::function<double(int64_t)> learning_rate_;
  bool replicas_differ_ = false;        // ParallelModel::independent_axis()
  std::array<double, kVotes> votes_{};  // of this rank, for the next sum
};

}  // namespace meshwright
