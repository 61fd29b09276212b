#include "sdk/base/pipeline_runner.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>

#include "meshwright/error.h"
#include "sdk/base/read_by_host.h"
#include "sdk/base/text.h"
#include "sdk/comm/activity.h"
#include "sdk/comm/shared_memory.h"
#include "sdk/nn/weight_gradients.h"

namespace meshwright {

using at::Tensor;
using Kind = PipelineAction::Kind;

// What is told of a step when somebody waits in it for too long: "3F5 of the pipeline, which waits
// for the activation from rank 1".
struct PipelineRunner::StepText {
  std::string action, does, waits;
};

// One stage and micro-batch, from its forward to its backward.
struct PipelineRunner::Pass {
  Tensor input;     // hidden states that came, a leaf of the stage's graph; its gradient goes back
  Tensor output;    // on its way to the next stage
  Tensor gradient;  // of the output: what came, or one
  torch::autograd::Edge root;  // where backward begins; `output` itself may go before that
  // Until the pass is over: what came in memory that two ranks share is read there.
  Work coming_input, coming_gradient;
  bool split = false;  // its weights' gradients are an action of their own
  std::shared_ptr<detail::WeightGradients> weights;
  Tensor input_slot, gradient_slot;  // memory of the two, if they came from another rank
  Tensor sent_beside;                // until the call is over that brings one of them
};

PipelineRunner::PipelineRunner(PipelineSetup setup)
    : setup_(std::move(setup)), largest_(setup_.message.sizes) {
  for (size_t rank = 0; rank < setup_.stages_of_rank.size(); ++rank)
    for (int64_t stage : setup_.stages_of_rank[rank]) {
      rank_of_.resize(std::max(rank_of_.size(), static_cast<size_t>(stage) + 1), -1);
      rank_of_[static_cast<size_t>(stage)] = static_cast<int64_t>(rank);
    }
  for (const std::vector<PipelineStep>& steps : setup_.run.steps)
    for (const PipelineStep& step : steps)
      micro_batches_ = std::max(micro_batches_, step.action.micro_batch + 1);
  if (!setup_.history) setup_.history = std::make_shared<PipelineHistory>();
  sends_.resize(2 * rank_of_.size());
  sizes_told_.assign(rank_of_.size(), setup_.message.sizes.empty() ? 0 : 1);
  passes_.resize(rank_of_.size() * static_cast<size_t>(micro_batches_));
  for (const PipelineStep& step : setup_.run.steps[static_cast<size_t>(setup_.group->rank())]) {
    texts_.push_back(text_of(step));
    if (step.action.kind == Kind::input) pass_of(step.action).split = true;
  }
}

PipelineRunner::~PipelineRunner() = default;

PipelineRunner::StepText PipelineRunner::text_of(const PipelineStep& step) const {
  const bool there = step.action.kind == Kind::forward;
  auto message = [&](int64_t peer) {
    return std::string(there ? "the activation" : "the gradient") +
           (step.kind == PipelineStep::Kind::send ? " to rank " : " from rank ") +
           std::to_string(setup_.group->ranks()[static_cast<size_t>(peer)]);
  };
  StepText out{action_name(step.action) + " of the pipeline", "which computes", ""};
  if (step.kind == PipelineStep::Kind::send) out.does = "which sends " + message(step.peer);
  if (step.kind == PipelineStep::Kind::receive) out.does = "which receives " + message(step.peer);
  const int64_t from = step.action.stage + (there ? -1 : 1);
  if (from >= 0 && from < stages())
    out.waits = "which waits for " + message(rank_of_[static_cast<size_t>(from)]);
  return out;
}

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
  for (auto [slot, coming] : {std::pair(&pass.gradient_slot, &pass.coming_gradient),
                              std::pair(&pass.input_slot, &pass.coming_input)})
    if (std::exchange(*coming, {}); slot->defined())
      free_slots_.push_back(std::exchange(*slot, {}));
}

void PipelineRunner::resize(std::vector<int64_t> sizes) {
  if (sizes == setup_.message.sizes) return;
  free_slots_.clear();
  setup_.message.sizes = std::move(sizes);
}

// An exception may have cut the last step short.
void PipelineRunner::clear() {
  for (Pass& pass : passes_) {
    const bool split = pass.split;
    pass = Pass();
    pass.split = split;
  }
  for (std::deque<Sent>& under_way : sends_) under_way.clear();
  now_ = peak_ = {0, 0, 0};
}

namespace {

PipelineUnits& units_of(ParallelModel& model) {
  if (PipelineUnits* units = model.pipeline_units()) return *units;
  throw Error(ErrorCode::not_in_release, "the strategy's model does not run under a pipeline")
      .key("distributed.pp_size")
      .help("set distributed.pp_size = 1");
}

}  // namespace

// Units are alike on the ranks that they are cut over, which run the same stages.
void PipelineRunner::find_units(ParallelModel& model) {
  if (std::exchange(units_known_, true)) return;
  units_.assign(rank_of_.size(), {});
  for (const std::string& unit : units_of(model).unit_names()) {
    int64_t users = 0, stage = 0;
    for (int64_t s : setup_.stages_of_rank[static_cast<size_t>(setup_.group->rank())]) {
      const std::vector<std::string>& modules = setup_.modules[static_cast<size_t>(s)];
      if (std::any_of(modules.begin(), modules.end(),
                      [&](const std::string& module) { return text::lies_in(unit, module); }))
        stage = s, ++users;
    }
    (users == 1 ? units_[static_cast<size_t>(stage)] : shared_units_).push_back(unit);
  }
}

// Messages of one host cross in shared memory. Where their size is not known yet, room that an
// earlier run has made may do.
void PipelineRunner::open_mailboxes() {
  if (std::exchange(mailboxes_open_, true)) return;
  const auto me = static_cast<size_t>(setup_.group->rank());
  const std::vector<int64_t>& sizes = largest_;
  const int64_t bytes = sizes.empty()
                            ? 0
                            : c10::multiply_integers(sizes) *
                                  static_cast<int64_t>(c10::elementSize(setup_.message.type));
  // What tells the sizes ahead of the first hidden states: one a boundary.
  auto headers = [&](size_t peer) {
    int64_t count = 0;
    for (size_t s = 1; sizes.empty() && s < rank_of_.size(); ++s) {
      const auto low = static_cast<size_t>(rank_of_[s - 1]),
                 high = static_cast<size_t>(rank_of_[s]);
      count += (low == me && high == peer) || (low == peer && high == me) ? 1 : 0;
    }
    return count;
  };
  std::vector<detail::MailboxNeed> needs;
  for (size_t peer = 0; peer < setup_.run.messages_ahead.size(); ++peer)
    if (const int64_t ahead =
            std::max(setup_.run.messages_ahead[me][peer], setup_.run.messages_ahead[peer][me]);
        ahead > 0)
      needs.push_back({static_cast<int64_t>(peer), bytes, ahead + headers(peer)});
  detail::open_mailboxes(*setup_.group, std::move(needs));
}

// NCCL connects two ranks at their first message, each way by itself, and both must then connect
// the same ways: one exchange with every neighbour, in the order of all pairs.
void PipelineRunner::meet_neighbours() {
  if (!setup_.message.device.is_cuda() || std::exchange(neighbours_met_, true)) return;
  const auto me = static_cast<size_t>(setup_.group->rank());
  const auto& ahead = setup_.run.messages_ahead;
  const at::TensorOptions byte = at::TensorOptions().dtype(at::kByte).device(setup_.message.device);
  for (size_t peer = 0; peer < ahead.size(); ++peer) {
    if (peer == me || std::max(ahead[me][peer], ahead[peer][me]) == 0) continue;
    const auto place = static_cast<int64_t>(peer);
    const std::array<PeerMessage, 2> both{
        PeerMessage{PeerMessage::Way::send, place, at::zeros({1}, byte)},
        PeerMessage{PeerMessage::Way::receive, place, at::empty({1}, byte)}};
    setup_.group->send_receive(both).wait();
  }
}

// [dimensions, sizes...] ahead of a stage's first hidden states. A rank waits for them where a
// receive stands, which the order of all ranks' steps allows.
constexpr int64_t kMostDimensions = 8;

void PipelineRunner::tell_sizes(const PipelineStep& step, const Tensor& output) {
  if (std::exchange(sizes_told_[static_cast<size_t>(step.action.stage)], 1) != 0) return;
  Tensor header = at::zeros({1 + kMostDimensions}, at::kLong);
  auto* values = header.mutable_data_ptr<int64_t>();
  values[0] = output.dim();
  std::copy(output.sizes().begin(), output.sizes().end(), values + 1);
  const std::array<PeerMessage, 1> message{
      PeerMessage{PeerMessage::Way::send, step.peer, header.to(setup_.message.device)}};
  setup_.group->send_receive(message).wait();
}

void PipelineRunner::hear_sizes(const PipelineStep& step) {
  if (std::exchange(sizes_told_[static_cast<size_t>(step.action.stage - 1)], 1) != 0) return;
  const Tensor header = at::zeros(
      {1 + kMostDimensions}, at::TensorOptions().dtype(at::kLong).device(setup_.message.device));
  const std::array<PeerMessage, 1> message{
      PeerMessage{PeerMessage::Way::receive, step.peer, header}};
  setup_.group->send_receive(message).wait();
  const Tensor here = detail::read_by_host(*setup_.group, header);
  const auto* values = here.const_data_ptr<int64_t>();
  setup_.message.sizes.assign(values + 1, values + 1 + std::min(values[0], kMostDimensions));
}

void PipelineRunner::receive(const PipelineStep& step) {
  if (step.action.kind == Kind::forward) hear_sizes(step);
  Pass& pass = pass_of(step.action);
  const bool there = step.action.kind == Kind::forward;
  const int64_t count = c10::multiply_integers(setup_.message.sizes);
  if (detail::maps_message(*setup_.group, step.peer,
                           count * static_cast<int64_t>(c10::elementSize(setup_.message.type)))) {
    (there ? pass.coming_input : pass.coming_gradient) =
        detail::receive_in_place(*setup_.group, step.peer, count, setup_.message.type);
    return;
  }
  const std::array<PeerMessage, 1> message{expect(step)};
  (there ? pass.coming_input : pass.coming_gradient) = setup_.group->send_receive(message);
}

// Room for what a step receives, and the message that fills it.
PeerMessage PipelineRunner::expect(const PipelineStep& step) {
  Pass& pass = pass_of(step.action);
  const bool there = step.action.kind == Kind::forward;
  const Tensor into = take_slot();
  (there ? pass.input_slot : pass.gradient_slot) = into;
  (there ? pass.input : pass.gradient) = into;
  return {PeerMessage::Way::receive, step.peer, into};
}

// What a step sends, which is the pass's no more.
Tensor PipelineRunner::take_message(const PipelineStep& step) {
  Pass& pass = pass_of(step.action);
  return step.action.kind == Kind::forward ? std::exchange(pass.output, {}).detach()
                                           : std::exchange(pass.input, {}).grad();
}

// Nobody wants some gradients.
bool PipelineRunner::crosses(const PipelineStep& step) const {
  if (step.kind == PipelineStep::Kind::compute) return false;
  if (step.action.kind == Kind::forward) return true;
  const int64_t of = step.action.stage + (step.kind == PipelineStep::Kind::receive ? 1 : 0);
  return setup_.needs_input_gradient[static_cast<size_t>(of)];
}

// On a device both ways between two ranks are one call where they follow each other: by themselves
// the later would wait for the earlier on the stream of the group.
bool PipelineRunner::exchange(const PipelineStep& first, const PipelineStep& second) {
  if (!setup_.message.device.is_cuda() || first.peer != second.peer || first.kind == second.kind ||
      !crosses(second))
    return false;
  const bool sends_first = first.kind == PipelineStep::Kind::send;
  const PipelineStep &out = sends_first ? first : second, &in = sends_first ? second : first;
  auto told = [&](int64_t boundary) { return sizes_told_[static_cast<size_t>(boundary)] != 0; };
  if (out.action.kind == Kind::forward && !told(out.action.stage)) return false;
  if (in.action.kind == Kind::forward && !told(in.action.stage - 1)) return false;
  const std::array<PeerMessage, 2> messages{
      PeerMessage{PeerMessage::Way::send, out.peer, take_message(out)}, expect(in)};
  Pass& pass = pass_of(in.action);
  pass.sent_beside = messages[0].tensor;
  (in.action.kind == Kind::forward ? pass.coming_input : pass.coming_gradient) =
      setup_.group->send_receive(messages);
  return true;
}

void PipelineRunner::send(const PipelineStep& step) {
  const bool there = step.action.kind == Kind::forward;
  const Tensor what = take_message(step);
  if (there) tell_sizes(step, what);
  const std::array<PeerMessage, 1> message{PeerMessage{PeerMessage::Way::send, step.peer, what}};
  if (detail::maps_message(*setup_.group, step.peer, static_cast<int64_t>(what.nbytes()))) {
    setup_.group->send_receive(message).wait();  // it is copied
    return;
  }
  // As many as the simulation says never make the sender wait, and no more, are kept alive.
  const auto boundary = static_cast<size_t>(step.action.stage - (there ? 0 : 1));
  std::deque<Sent>& under_way = sends_[2 * boundary + (there ? 0 : 1)];
  if (under_way.size() >= static_cast<size_t>(std::max<int64_t>(setup_.run.slots[boundary], 1))) {
    under_way.front().work.wait();
    under_way.pop_front();
  }
  under_way.push_back({setup_.group->send_receive(message), what});
}

void PipelineRunner::wait_for_input(const PipelineAction& action) {
  if (action.kind == Kind::weight) return;
  Pass& pass = pass_of(action);
  const bool there = action.kind == Kind::forward;
  Work& coming = there ? pass.coming_input : pass.coming_gradient;
  if (!coming) return;
  coming.wait();
  pass.sent_beside = Tensor();
  const int64_t from = rank_of_[static_cast<size_t>(action.stage + (there ? -1 : 1))];
  if (const Tensor lent = detail::peer(coming, from); lent.defined())
    (there ? pass.input : pass.gradient) = lent.view(setup_.message.sizes);
}

void PipelineRunner::compute_forward(const PipelineAction& action, const Forward& forward) {
  Pass& pass = pass_of(action);
  const Tensor came = pass.input;
  Tensor input = came;
  if (input.defined() && setup_.needs_input_gradient[static_cast<size_t>(action.stage)]) {
    input = input.detach().requires_grad_();
    pass.input = input;
  }
  if (pass.split) pass.weights = std::make_shared<detail::WeightGradients>();
  detail::WeightGradientScope scope(pass.weights);
  Tensor output = forward(action, input);
  const bool last = action.stage + 1 == stages();
  if (!last && setup_.message.sizes.empty() && output.dim() <= kMostDimensions)
    setup_.message.sizes = output.sizes().vec();
  if (!last && (output.sizes() != at::IntArrayRef(setup_.message.sizes) ||
                output.scalar_type() != setup_.message.type))
    throw Error(ErrorCode::bad_module,
                "stage " + std::to_string(action.stage) +
                    " gave hidden states of another shape or dtype than the next stage waits for")
        .help("a model's stages pass on one tensor [batch, tokens, hidden] of the same shape");
  if (output.requires_grad()) pass.root = torch::autograd::impl::gradient_edge(output);
  // A stage of views alone may hand the message itself on, whose memory goes with its own pass.
  if (came.defined() && output.is_alias_of(came)) output = output.detach().clone();
  if (!c10::GradMode::is_enabled()) {  // nobody comes back for it
    pass.input = Tensor();
    give_slots(pass);
  }
  if (last) {
    if (pass.root.is_valid()) pass.gradient = at::ones_like(output);
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
  const Tensor came = std::exchange(pass.gradient, {});
  if (pass.root.is_valid())
    torch::autograd::Engine::get_default_engine().execute(
        {std::exchange(pass.root, {})}, {came}, /*keep_graph=*/false,
        /*create_graph=*/false, /*accumulate_grad=*/true);
  if (Tensor back = pass.input.defined() ? pass.input.grad() : Tensor();
      back.defined() && came.defined() && back.is_alias_of(came))
    pass.input.mutable_grad() = back.clone();
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
  const std::vector<std::string>& units = units_[static_cast<size_t>(action.stage)];
  PipelineUnits& all = units_of(model);
  const bool each = all.reduces_every_micro_batch(),
             done = --passes_left_[static_cast<size_t>(action.stage)] == 0;
  if (done && !units.empty()) all.hold_units(units, false);
  if (((done && reduce_) || each) && !units.empty()) all.reduce_units(units);
  const bool all_stages = --stages_left_[static_cast<size_t>(action.micro_batch)] == 0;
  if (all_stages) --micro_batches_left_;
  if (shared_units_.empty() || !all_stages) return;
  const bool over = micro_batches_left_ == 0;
  if (over) all.hold_units(shared_units_, false);
  if (each || (reduce_ && over)) all.reduce_units(shared_units_);
}

void PipelineRunner::wait_for_sends() {
  static const std::string what = "messages to other stages";
  detail::Activity activity(what, "at the end of the step");
  for (std::deque<Sent>& under_way : sends_)
    for (; !under_way.empty(); under_way.pop_front()) under_way.front().work.wait();
}

// A pass holds what it saved until its backward, or what waits for its weights.
PipelinePeak PipelineRunner::held(const PipelineAction& action) {
  const Pass& pass = pass_of(action);
  const bool saved = pass.root.is_valid(), waits = !saved && pass.weights && !pass.weights->empty();
  return {saved || waits, waits, saved && action.stage + 1 == stages()};
}
void PipelineRunner::count(const PipelineAction& action, const PipelinePeak& before) {
  const PipelinePeak after = held(action);
  for (int64_t PipelinePeak::* field :
       {&PipelinePeak::passes, &PipelinePeak::waiting, &PipelinePeak::logits}) {
    now_.*field += after.*field - before.*field;
    peak_.*field = std::max(peak_.*field, now_.*field);
  }
}

void PipelineRunner::compute(ParallelModel& model, const PipelineAction& action,
                             const Forward& forward, const BeforeBackward& before) {
  if (action.kind == Kind::forward) return compute_forward(action, forward);
  if (action.kind == Kind::weight) {
    Pass& pass = pass_of(action);
    if (auto weights = std::exchange(pass.weights, {})) weights->run();
    give_slots(pass);
  } else {
    if (before) before(action);
    compute_backward(action);
  }
  if (action.kind != Kind::input) after_backward(model, action);
}

void PipelineRunner::run_steps(ParallelModel& model, const Forward& forward,
                               const BeforeBackward& before) {
  // Messages of a run that ended in an error may still lie between the ranks, or never come.
  PipelineHistory& history = *setup_.history;
  if (std::exchange(history.running, true) && setup_.group->size() > 1)
    throw Error(ErrorCode::collective_failed,
                "the run of the pipeline before this one ended in an error: messages between its " +
                    std::to_string(setup_.group->size()) + " ranks are lost")
        .help("end all ranks after an error, and go on from the last checkpoint");
  open_mailboxes();
  meet_neighbours();
  const auto me = static_cast<size_t>(setup_.group->rank());
  for (size_t i = 0; i < setup_.run.steps[me].size(); ++i) {
    const PipelineStep& step = setup_.run.steps[me][i];
    const StepText& text = texts_[i];
    const int64_t order = history.actions + step.order;
    detail::Activity activity(text.action, text.does.c_str(), order);
    if (step.kind == PipelineStep::Kind::compute) {
      model.begin_micro_batch(GradientSync::when_told);
      {
        detail::Activity waiting(text.action, text.waits.c_str(), order);
        wait_for_input(step.action);
      }
      const bool traced = setup_.trace != nullptr && setup_.trace->enabled;
      const int64_t began = traced ? setup_.trace->mark() : 0;
      const PipelinePeak held_before = held(step.action);
      compute(model, step.action, forward, before);
      count(step.action, held_before);
      if (traced)
        setup_.trace->span(Trace::Lane::compute, action_name(step.action), began,
                           setup_.trace->mark());
      continue;
    }
    if (!crosses(step)) continue;
    if (i + 1 < setup_.run.steps[me].size() && exchange(step, setup_.run.steps[me][i + 1])) {
      ++i;
      continue;
    }
    if (step.kind == PipelineStep::Kind::receive)
      receive(step);
    else
      send(step);
  }
  wait_for_sends();
  history.running = false;
  int64_t most = 0;
  for (const std::vector<PipelineStep>& steps : setup_.run.steps)
    if (!steps.empty()) most = std::max(most, steps.back().order + 1);
  history.actions += most;
}

void PipelineRunner::run(ParallelModel& model, const Forward& forward, const BeforeBackward& before,
                         bool reduce) {
  clear();
  find_units(model);
  reduce_ = reduce;
  passes_left_.assign(rank_of_.size(), micro_batches_);
  stages_left_.assign(static_cast<size_t>(micro_batches_),
                      static_cast<int64_t>(
                          setup_.stages_of_rank[static_cast<size_t>(setup_.group->rank())].size()));
  micro_batches_left_ = micro_batches_;
  units_of(model).hold_units({}, true);
  run_steps(model, forward, before);
}

void PipelineRunner::run_forwards(ParallelModel& model, const Forward& forward) {
  c10::NoGradGuard no_grad;
  clear();
  units_of(model).hold_units({}, true);
  run_steps(model, forward, {});
  units_of(model).hold_units({}, false);
}

}  // namespace meshwright
