// The pipeline stages of a rank: what becomes of a model before it is parallelized, and the runs of
// a step.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/job/plan.h"
#include "meshwright/trainer.h"
#include "sdk/base/pipeline_runner.h"

namespace meshwright::train {

class Stages {
 public:
  // Takes out of `model` what other ranks have. `whole`: its outline before that. Throws
  // Error(bad_pipeline) where it cannot be cut, Error(bad_module) where it lacks a module of the
  // outline.
  Stages(const plan::JobPlan& plan, const StrategyConfig& config, const ModelOutline& whole,
         torch::nn::Module& model, World& world);

  // Of what this rank keeps.
  const ModelOutline& outline() const { return outline_; }
  // The ranks of pp. Collective over them the first time.
  const std::shared_ptr<Group>& group();
  // Collective over the two ranks that have a tied weight's copies. Throws Error(bad_pipeline)
  // where the strategy cuts the two in other ways.
  void check_tied(const ParallelModel& model);
  // Likewise, between the reduction of gradients and the norm: both get the sum. One that lies on
  // the host is there once the host has waited for the device's current stream.
  void sum_tied_gradients(const ParallelModel& model);
  // Of a step: each run takes as many.
  int64_t runs() const { return runs_; }
  int64_t micro_batches() const { return micro_batches_; }
  // For whoever starts a run: "1F1B, 2 stages, 8 micro-batches a run, idle 11% of it".
  std::string describe() const;
  int64_t first_layer(int64_t stage) const {
    return plan_.stages[static_cast<size_t>(stage)].first_layer;
  }
  bool is_last(int64_t stage) const {
    return stage + 1 == static_cast<int64_t>(plan_.stages.size());
  }

  // Of the micro-batches of train() that follow: tokens of a sample, up to dataset.seq_len. The
  // same on all ranks of pp.
  void set_length(int64_t length);

  // What one stage makes of one micro-batch of the step; of the last stage a scalar.
  using Forward = std::function<at::Tensor(int64_t stage, int64_t micro, const at::Tensor& hidden)>;
  using BeforeBackward = std::function<void(int64_t micro)>;
  // Collective. Run `run` of the step, within a StageScope each.
  void train(ParallelModel& model, int64_t run, const Forward& forward,
             const BeforeBackward& before);
  // Collective. Forwards alone, of any number of micro-batches.
  void evaluate(ParallelModel& model, int64_t micro_batches, const Forward& forward);
  // Collective. One forward of a batch of any shape; `hidden`: the shape of what crosses. Gives
  // what the last stage made, on its rank; undefined on others.
  at::Tensor forward(ParallelModel& model, std::vector<int64_t> hidden, const Forward& forward);
  // " (of stage 2)", for errors about a parameter.
  std::string told_stage(const std::string& parameter) const;
  // The rank of pp that has the last stage.
  int64_t last_rank() const { return plan_.stages.back().rank; }

 private:
  std::shared_ptr<Group> ends();  // the ranks of the first and the last stage
  PipelineSetup setup(PipelineRun run, std::vector<int64_t> sizes);
  PipelineRunner::Forward within_stage(int64_t first_micro, const Forward& forward) const;

  PipelinePlan plan_;
  PipelineRun run_;  // simulated
  ModelOutline outline_;
  // Of hidden states of samples of a length; empty: known when they come.
  std::function<std::vector<int64_t>(int64_t length)> sizes_of_;
  std::vector<int64_t> sizes_, largest_;  // of the next run, and of samples of dataset.seq_len
  at::ScalarType type_;
  std::string model_name_, tied_;  // tied_: this rank's name of a weight that another one has too
  Mesh mesh_;
  World& world_;
  int64_t runs_ = 1, micro_batches_ = 1;
  std::shared_ptr<Group> group_;
  std::shared_ptr<PipelineHistory> history_ = std::make_shared<PipelineHistory>();
  std::unique_ptr<PipelineRunner> runner_;
};

}  // namespace meshwright::train
