// Runs what one rank of a pipeline does in a step: forwards and backwards of its stages in the
// order of a schedule, with the messages between them (semantics 11.3).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/parallel/parallel.h"
#include "pipeline.h"

namespace meshwright {

// What crosses from stage to stage: hidden states, and their gradients back.
struct StageMessage {
  std::vector<int64_t> sizes = {};  // empty: ranks tell each other in the first run
  at::ScalarType type = at::kFloat;
  at::Device device = at::kCPU;
};

// What the runs over one group have in common.
struct PipelineHistory {
  bool running = false;  // also after an exception
  int64_t actions = 0;   // of all ranks, in the runs that are over
};

struct PipelineSetup {
  std::shared_ptr<Group> group = {};  // the ranks of pp
  // Of all runners over the group; nullptr: this is the only one.
  std::shared_ptr<PipelineHistory> history = {};
  PipelineRun run = {};
  std::vector<std::vector<int64_t>> stages_of_rank = {};  // [pp]
  StageMessage message = {};
  // By stage: its modules. Units in them are let go and reduced after its last backward; those
  // around or outside of them after the last of all stages of this rank.
  std::vector<std::vector<std::string>> modules = {};
  // By stage: whether one before it has something to train. Only then gradients go back to that.
  std::vector<bool> needs_input_gradient = {};
  Trace* trace = nullptr;  // of actions; nullptr: none
};

class MESHWRIGHT_API PipelineRunner {
 public:
  // Where a list splits a backward, Linear's weights wait for their own action (zero bubble: Qi et
  // al. 2023); what else has parameters brings its gradients with that of the input.
  explicit PipelineRunner(PipelineSetup setup);
  ~PipelineRunner();
  PipelineRunner(const PipelineRunner&) = delete;
  PipelineRunner& operator=(const PipelineRunner&) = delete;
  // `action`: a forward. `input`: the hidden states of the stage before, undefined for the first.
  // Gives the hidden states, or, of the last stage, the scalar that backward begins with.
  using Forward = std::function<at::Tensor(const PipelineAction& action, const at::Tensor& input)>;
  // Called right before the backward of an action, or its first half.
  using BeforeBackward = std::function<void(const PipelineAction& action)>;
  // One run of the schedule, between begin_step() and end_step(). `reduce`: the last one of a step.
  // Collective over the group, and with the ranks beside this one that the units are cut over.
  // After an exception a pipeline of one rank may run again; more of them throw
  // Error(collective_failed), since what they sent to each other is lost.
  void run(ParallelModel& model, const Forward& forward, const BeforeBackward& before = {},
           bool reduce = true);
  // Of the runs that follow: hidden states of other sizes, no larger than those of the setup. The
  // same ones on all ranks of the group. Not where the setup left them to the first run.
  void resize(std::vector<int64_t> sizes);
  // Of a list of forwards alone, without gradients.
  void run_forwards(ParallelModel& model, const Forward& forward);
  // What this rank held at the fullest moment of the last run, counted by what was there.
  const PipelinePeak& peak() const { return peak_; }

 private:
  struct Pass;
  struct StepText;
  Pass& pass_of(const PipelineAction& action);
  StepText text_of(const PipelineStep& step) const;
  PeerMessage expect(const PipelineStep& step);
  at::Tensor take_message(const PipelineStep& step);
  bool crosses(const PipelineStep& step) const;
  bool exchange(const PipelineStep& first, const PipelineStep& second);
  void count(const PipelineAction& action, const PipelinePeak& before);
  PipelinePeak held(const PipelineAction& action);
  bool here(int64_t stage) const;
  int64_t stages() const { return static_cast<int64_t>(rank_of_.size()); }
  void clear();
  void find_units(ParallelModel& model);
  void open_mailboxes();
  void meet_neighbours();
  void run_steps(ParallelModel& model, const Forward& forward, const BeforeBackward& before);
  void tell_sizes(const PipelineStep& step, const at::Tensor& output);
  void hear_sizes(const PipelineStep& step);
  void receive(const PipelineStep& step);
  void send(const PipelineStep& step);
  void wait_for_input(const PipelineAction& action);
  void compute_forward(const PipelineAction& action, const Forward& forward);
  void compute(ParallelModel& model, const PipelineAction& action, const Forward& forward,
               const BeforeBackward& before);
  void compute_backward(const PipelineAction& action);
  void after_backward(ParallelModel& model, const PipelineAction& action);
  void wait_for_sends();
  at::Tensor take_slot();
  void give_slots(Pass& pass);

  PipelineSetup setup_;
  std::vector<int64_t> largest_;  // message sizes of the setup
  struct Sent {
    Work work;
    at::Tensor tensor;
  };
  std::vector<int64_t> rank_of_;                 // by stage
  std::vector<std::vector<std::string>> units_;  // by stage: those that it alone uses here
  std::vector<std::string> shared_units_;
  bool mailboxes_open_ = false, units_known_ = false, reduce_ = true;
  bool neighbours_met_ = false;
  std::vector<char> sizes_told_;  // by stage: to the next one
  // Of this step: backwards by stage, stages of this rank by micro-batch, micro-batches.
  std::vector<int64_t> passes_left_, stages_left_;
  int64_t micro_batches_left_ = 0;
  int64_t micro_batches_ = 0;
  PipelinePeak now_{0, 0, 0}, peak_{0, 0, 0};
  std::vector<Pass> passes_;     // by stage and micro-batch
  std::vector<StepText> texts_;  // of this rank's steps, for errors
  std::vector<at::Tensor> free_slots_;
  std::vector<std::deque<Sent>> sends_;  // by boundary and way
};

}  // namespace meshwright
