#include "sdk/base/pipeline_runner.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>

#include "meshwright/error.h"
#include "sdk/comm/activity.h"
#include "sdk/nn/weight_gradients.h"

namespace meshwright {

using at::Tensor;
using Kind = PipelineAction::Kind;

namespace {

// What a rank that waits in a step of this kind is at.
const char* kind_name(PipelineStep::Kind kind) {
  switch (kind) {
    case PipelineStep::Kind::send:
      return "which sends";
    case PipelineStep::Kind::receive:
      return "which receives";
    default:
      return "which waits for its input or computes";
  }
}

}  // namespace

// One stage and micro-batch, from its forward to its backward.
struct PipelineRunner::Pass {
  Tensor input;     // hidden states that came, a leaf of the stage's graph; its gradient goes back
  Tensor output;    // on its way to the next stage
  Tensor gradient;  // of the output: what came, or one
  torch::autograd::Edge root;  // where backward begins; `output` itself may go before that
  Work coming_input, coming_gradient;
  bool split = false;  // its weights' gradients are an action of their own
  std::shared_ptr<detail::WeightGradients> weights;
  Tensor input_slot, gradient_slot;  // memory of the two, if they came from another rank
};

PipelineRunner::PipelineRunner(PipelineSetup setup) : setup_(std::move(setup)) {
  for (size_t rank = 0; rank < setup_.stages_of_rank.size(); ++rank)
    for (int64_t stage : setup_.stages_of_rank[rank]) {
      rank_of_.resize(std::max(rank_of_.size(), static_cast<size_t>(stage) + 1), -1);
      rank_of_[static_cast<size_t>(stage)] = static_cast<int64_t>(rank);
    }
  for (const std::vector<PipelineStep>& steps : setup_.run.steps)
    for (const PipelineStep& step : steps)
      micro_batches_ = std::max(micro_batches_, step.action.micro_batch + 1);
  sends_.resize(2 * rank_of_.size());
  passes_.resize(rank_of_.size() * static_cast<size_t>(micro_batches_));
  for (const PipelineStep& step : setup_.run.steps[static_cast<size_t>(setup_.group->rank())]) {
    names_.push_back(action_name(step.action) + " of the pipeline");
    if (step.action.kind == Kind::input) pass_of(step.action).split = true;
  }
}

PipelineRunner::~PipelineRunner() = default;

PipelineRunner::Pass& PipelineRunner::pass_of(const PipelineAction& action) {
  return passes_[static_cast<size_t>(action.stage * micro_batches_ + action.micro_batch)];
}

bool PipelineRunner::here(int64_t stage) const {
  return rank_of_[static_cast<size_t>(stage)] == setup_.group->rank();
}

// A message takes the memory of one that is done with.
Tensor PipelineRunner::take_slot() {
  if (free_slots_.empty())
    return at::empty(setup_.message.sizes,
                     at::TensorOptions().dtype(setup_.message.type).device(setup_.message.device));
  Tensor out = std::move(free_slots_.back());
  free_slots_.pop_back();
  return out;
}
void PipelineRunner::give_slots(Pass& pass) {
  for (Tensor* slot : {&pass.gradient_slot, &pass.input_slot})
    if (slot->defined()) free_slots_.push_back(std::exchange(*slot, {}));
}

// An exception may have cut the last step short.
void PipelineRunner::clear() {
  for (Pass& pass : passes_) {
    const bool split = pass.split;
    pass = Pass();
    pass.split = split;
  }
  for (std::deque<Sent>& under_way : sends_) under_way.clear();
}

void PipelineRunner::receive(const PipelineStep& step) {
  Pass& pass = pass_of(step.action);
  const bool there = step.action.kind == Kind::forward;
  const Tensor into = take_slot();
  (there ? pass.input_slot : pass.gradient_slot) = into;
  (there ? pass.input : pass.gradient) = into;
  const std::array<PeerMessage, 1> message{PeerMessage{PeerMessage::Way::receive, step.peer, into}};
  (there ? pass.coming_input : pass.coming_gradient) = setup_.group->send_receive(message);
}

void PipelineRunner::send(const PipelineStep& step) {
  Pass& pass = pass_of(step.action);
  const bool there = step.action.kind == Kind::forward;
  const Tensor what =
      there ? std::exchange(pass.output, {}).detach() : std::exchange(pass.input, {}).grad();
  // As many as the simulation says never make the sender wait, and no more, are kept alive.
  const auto boundary = static_cast<size_t>(step.action.stage - (there ? 0 : 1));
  std::deque<Sent>& under_way = sends_[2 * boundary + (there ? 0 : 1)];
  if (under_way.size() >= static_cast<size_t>(std::max<int64_t>(setup_.run.slots[boundary], 1))) {
    under_way.front().work.wait();
    under_way.pop_front();
  }
  const std::array<PeerMessage, 1> message{PeerMessage{PeerMessage::Way::send, step.peer, what}};
  under_way.push_back({setup_.group->send_receive(message), what});
}

void PipelineRunner::compute_forward(const PipelineAction& action, const Forward& forward) {
  Pass& pass = pass_of(action);
  if (pass.coming_input) pass.coming_input.wait();
  Tensor input = pass.input;
  if (input.defined() && setup_.needs_input_gradient[static_cast<size_t>(action.stage)]) {
    input = input.detach().requires_grad_();
    pass.input = input;
  }
  if (pass.split) pass.weights = std::make_shared<detail::WeightGradients>();
  detail::WeightGradientScope scope(pass.weights);
  Tensor output = forward(action, input);
  const bool last = action.stage + 1 == stages();
  if (!last && (output.sizes() != at::IntArrayRef(setup_.message.sizes) ||
                output.scalar_type() != setup_.message.type))
    throw Error(ErrorCode::bad_module,
                "stage " + std::to_string(action.stage) +
                    " gave hidden states of another shape or dtype than the next stage waits for")
        .help("a model's stages pass on one tensor [batch, tokens, hidden]");
  if (output.requires_grad()) pass.root = torch::autograd::impl::gradient_edge(output);
  if (last) {
    pass.gradient = at::ones_like(output);
    return;
  }
  pass.output = output.is_contiguous() ? output : output.contiguous();
  if (!here(action.stage + 1)) return;  // a send follows
  PipelineAction next = action;
  ++next.stage;
  pass_of(next).input = std::exchange(pass.output, {}).detach();
}

void PipelineRunner::compute_backward(const PipelineAction& action) {
  Pass& pass = pass_of(action);
  if (pass.coming_gradient) pass.coming_gradient.wait();
  // What is recomputed on this thread puts off as well.
  detail::WeightGradientScope scope(pass.weights);
  if (pass.root.is_valid())
    torch::autograd::Engine::get_default_engine().execute(
        {std::exchange(pass.root, {})}, {pass.gradient}, /*keep_graph=*/false,
        /*create_graph=*/false, /*accumulate_grad=*/true);
  pass.gradient = Tensor();
  // What is put off may read both messages.
  if (!pass.split) give_slots(pass);
  if (action.stage == 0 || !setup_.needs_input_gradient[static_cast<size_t>(action.stage)]) {
    pass.input = Tensor();
    return;
  }
  // A stage whose output does not depend on its input.
  if (!pass.input.grad().defined())
    pass.input.mutable_grad() = at::zeros(pass.input.sizes(), pass.input.options());
  if (!here(action.stage - 1)) return;  // a send follows
  PipelineAction before = action;
  --before.stage;
  pass_of(before).gradient = std::exchange(pass.input, {}).grad();
}

void PipelineRunner::after_backward(ParallelModel& model, const PipelineAction& action) {
  const std::vector<std::string>& units = setup_.units[static_cast<size_t>(action.stage)];
  const bool done = --passes_left_[static_cast<size_t>(action.stage)] == 0;
  if (done && setup_.hold && !units.empty()) model.hold_units(units, false);
  if ((done || setup_.reduce_each) && !units.empty()) model.reduce_units(units);
  const bool shared = --stages_left_[static_cast<size_t>(action.micro_batch)] == 0;
  if (shared) --micro_batches_left_;
  if (shared && (setup_.reduce_each || micro_batches_left_ == 0) && !setup_.shared_units.empty())
    model.reduce_units(setup_.shared_units);
}

void PipelineRunner::wait_for_sends() {
  static const std::string what = "messages to other stages";
  detail::Activity activity(what, "at the end of the step");
  for (std::deque<Sent>& under_way : sends_)
    for (; !under_way.empty(); under_way.pop_front()) under_way.front().work.wait();
}

void PipelineRunner::run_step(ParallelModel& model, const Forward& forward) {
  clear();
  const auto me = static_cast<size_t>(setup_.group->rank());
  passes_left_.assign(rank_of_.size(), micro_batches_);
  stages_left_.assign(static_cast<size_t>(micro_batches_),
                      static_cast<int64_t>(setup_.stages_of_rank[me].size()));
  micro_batches_left_ = micro_batches_;
  if (setup_.hold) model.hold_units({}, true);
  for (size_t i = 0; i < setup_.run.steps[me].size(); ++i) {
    const PipelineStep& step = setup_.run.steps[me][i];
    detail::Activity activity(names_[i], kind_name(step.kind));
    const bool back = step.action.kind != Kind::forward;
    if (step.kind != PipelineStep::Kind::compute && back) {  // nobody wants some gradients
      const int64_t of = step.action.stage + (step.kind == PipelineStep::Kind::receive ? 1 : 0);
      if (!setup_.needs_input_gradient[static_cast<size_t>(of)]) continue;
    }
    if (step.kind == PipelineStep::Kind::receive) {
      receive(step);
    } else if (step.kind == PipelineStep::Kind::send) {
      send(step);
    } else {
      model.begin_micro_batch(GradientSync::when_told);
      if (step.action.kind == Kind::weight) {
        Pass& pass = pass_of(step.action);
        if (auto weights = std::exchange(pass.weights, {})) weights->run();
        give_slots(pass);
      } else if (back) {
        compute_backward(step.action);
      }
      if (back) {
        if (step.action.kind != Kind::input) after_backward(model, step.action);
      } else {
        compute_forward(step.action, forward);
      }
    }
  }
  wait_for_sends();
}

}  // namespace meshwright
