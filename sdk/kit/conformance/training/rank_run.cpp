#include "sdk/kit/conformance/training/rank_run.h"

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <stdexcept>

#include "meshwright/nn/stage.h"
#include "meshwright/parallel/context_parallel.h"
#include "meshwright/parallel/parallelize.h"
#include "meshwright/parallel/testing.h"
#include "sdk/base/check_parts.h"
#include "sdk/base/plugin_guard.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright::conformance {

using at::Tensor;

namespace {

bool off(double found, double expected, double tolerance) {
  return !(std::abs(found - expected) <= tolerance * std::abs(expected));
}

// Whether an option of the strategy names a dtype of less than 32 bits.
bool rounds(const Options& own) {
  return std::ranges::any_of(own.schema().options, [&](const meshwright_option* option) {
    if ((option->flags & MESHWRIGHT_DTYPE) == 0 || !own.is_given(option->name)) return false;
    const std::optional<DType> dtype = own.find_dtype(option->name);
    return dtype && dtype_size(*dtype) < 4;
  });
}

}  // namespace

RankRun::RankRun(const Subject& subject, const MeshRequest& request, const Reference& reference,
                 const std::shared_ptr<World>& world, std::vector<std::string>& problems)
    : exact_(reference),
      problems_(problems),
      world_(world),
      strategy_(subject),
      net_(make_net()),
      name_(subject.strategy->name),
      code_(subject.code != nullptr ? subject.code : detail::plugin_code(name_)) {
  mesh_ = detail::call_plugin(code_, "plan_mesh", [&] { return strategy_->plan_mesh(request); });
  const SharedOptions& shared = request.config.shared();
  data_ranks_ = mesh_.dp * std::max<int64_t>(shared.sizes.cp, 1);
  recomputes_ = shared.activation_checkpointing == ActivationCheckpointing::full;
  if (shared.mp.param != DType::float32 || rounds(request.config.own()))
    tolerance_ = kRoundedTolerance;
  make_model(request);
  check_parameters();
  // What the engine refuses before it trains.
  detail::check_parts(*model_, *net_, shared.sizes, tp_, name_);
  if (stages_) runner_ = open_pipeline(*world_, mesh_, *stages_, std::ssize(micro_batches()));
  for (const FlatParameterGroup& group : model_->update_groups())
    momenta_.push_back(at::zeros_like(group.values));
  check_independence();
  check_data_group();
}

void RankRun::make_model(const MeshRequest& request) {
  const SharedOptions& shared = request.config.shared();
  outline_ = outline_of(*net_);
  outline_.hidden_size = kWidth;
  outline_.attention_heads = outline_.key_value_heads = kHeads;
  outline_.head_dim = kWidth / kHeads;
  outline_.own_tp_plan = {{"layers.*.self_attn.q_proj", "colwise"},
                          {"layers.*.self_attn.k_proj", "colwise"},
                          {"layers.*.self_attn.v_proj", "colwise"},
                          {"layers.*.self_attn.o_proj", "rowwise"},
                          {"layers.*.self_attn.q_norm", "replicated_with_grad_allreduce"},
                          {"layers.*.self_attn.k_norm", "replicated_with_grad_allreduce"},
                          {"layers.*.mlp.up_proj", "colwise"},
                          {"layers.*.mlp.down_proj", "rowwise"}};
  tp_ = detail::call_plugin(code_, "translate_tp_plan", [&] {
    return strategy_->translate_tp_plan(
        outline_, {shared.sizes.tp, shared.sequence_parallel, shared.tp_plan});
  });
  if (shared.sizes.pp > 1) stages_ = split_stages(*net_, outline_, shared, mesh_, world_->rank());
  ParallelizeRequest wanted{net_.ptr(), outline_, mesh_, tp_, request.config, world_};
  const LiveShardingRequest live(wanted);
  ShardingPlan plan;
  detail::call_plugin(code_, "plan_sharding", [&] {
    wire_ = planned_wire(live);
    planned_ = planned_bytes(live);
    plan = strategy_->plan_sharding(live);
  });
  wanted.plan = &plan;
  gradient_tolerance_ = plan.gradient_tolerance;
  if (approximate()) own_.states.push_back(first_state());
  model_ = detail::guarded_model(code_, detail::call_plugin(code_, "parallelize", [&] {
                                   return strategy_->parallelize(wanted);
                                 }));
  if (!model_) throw std::runtime_error("parallelize returned nothing");
  if (model_->extension(kOwnExtensions - 1) != nullptr)
    fail("extension(" + std::to_string(kOwnExtensions - 1) +
         ") of its model gives an interface, but no version of the SDK has that id");
}

// Micro-batches of a step are of unequal size: what weights send depends on their number, what
// activations send on the number of samples.
std::vector<WireRow> RankRun::planned_wire(ShardingRequest cost) const {
  cost.workload = {1, kLength, std::ssize(micro_batches()), DType::float32, 1};
  cost.rank = world_->rank();
  CommunicationSchedule schedule = cost_of(cost).schedule;
  if (stages_) std::ranges::copy(pipeline_schedule(cost, *stages_), std::back_inserter(schedule));
  std::vector<WireRow> out = wire_of(schedule);
  cost.workload.accumulation = std::ssize(own_rows());
  for (const WireRow& each : cost_of(cost).wire)
    for (WireRow& row : out)
      if (row.axis == each.axis && row.op == each.op && (row.axis == "tp" || row.axis == "cp"))
        row.bytes = each.bytes;
  return out;
}

// Of the largest micro-batch.
Bytes RankRun::planned_bytes(ShardingRequest cost) const {
  const std::vector<std::vector<int64_t>> parts = micro_batches();
  cost.workload = {std::ssize(parts.back()), kLength, std::ssize(parts), DType::float32, 1};
  cost.rank = world_->rank();
  return cost_of(cost).bytes;
}

Footprint RankRun::cost_of(const ShardingRequest& request) const {
  return footprint_of(request, strategy_->plan_sharding(request));
}

// Ranks of cp, tp and pp have the same rows.
std::vector<int64_t> RankRun::own_rows() const {
  const int64_t place =
      mesh_.device_mesh ? mesh_.device_mesh->coordinate(world_->rank(), "dp") : world_->rank();
  std::vector<int64_t> rows(static_cast<size_t>(kRows / mesh_.dp));
  std::iota(rows.begin(), rows.end(), place * std::ssize(rows));
  return rows;
}

// Two of unequal size, since what counts is each one's weight; for stages, whose messages are
// alike, of one sample each.
std::vector<std::vector<int64_t>> RankRun::micro_batches() const {
  const std::vector<int64_t> rows = own_rows();
  std::vector<std::vector<int64_t>> out;
  if (stages_) {
    for (int64_t row : rows) out.push_back({row});
    return out;
  }
  const auto middle = rows.begin() + std::ssize(rows) / 3;
  return {{rows.begin(), middle}, {middle, rows.end()}};
}

// Of a sum over targets: gradients are averages over all ranks that have tokens of their own.
double RankRun::weight() const {
  return static_cast<double>(data_ranks_) / static_cast<double>(kRows * kLength);
}

Tensor RankRun::loss_of(int64_t step, const std::vector<int64_t>& rows) {
  return loss_sum_of(net_, samples(step, rows), model_->context_parallel().get()) * weight();
}

double RankRun::pass(int64_t step) {
  double sum = 0;
  const std::vector<std::vector<int64_t>> parts = micro_batches();
  for (size_t i = 0; i < parts.size(); ++i) {
    model_->begin_micro_batch(i + 1 == parts.size() ? GradientSync::reduce
                                                    : GradientSync::accumulate);
    if (watch_ && step == 0 && !parts[i].empty()) watch_->begin(parts[i].front());
    Tensor loss = loss_of(step, parts[i]);
    loss.backward();
    sum += loss.item<double>();
  }
  return sum;
}

double RankRun::pass_stages(int64_t step) {
  double sum = 0;
  const std::vector<std::vector<int64_t>> parts = micro_batches();
  runner_->run(*model_, [&](const PipelineAction& action, const Tensor& hidden) {
    const PipelineStage& stage = stages_->stages[static_cast<size_t>(action.stage)];
    const StagePart part = part_of(stage, *stages_);
    StageScope scope(part);
    Tensor out = stage_output(net_, samples(step, parts[static_cast<size_t>(action.micro_batch)]),
                              hidden, part.last);
    if (!part.last) return out;
    out = out * weight();
    sum += out.item<double>();
    return out;
  });
  return sum;
}

// A step that is left before its end; begin_step() recovers from it.
void RankRun::cut_short(int64_t step) {
  model_->begin_step();
  model_->begin_micro_batch(GradientSync::accumulate);
  loss_of(step, micro_batches()[0]).backward();
}

void RankRun::step(int64_t step) {
  const auto at = static_cast<size_t>(step);
  LossAndGradients exact;
  if (approximate()) {
    std::vector<int64_t> all(kRows);
    std::iota(all.begin(), all.end(), 0);
    exact = backward_at(own_.states[at].parameters, step, all);
  }
  const double expected_loss = approximate() ? exact.loss : exact_.losses[at];
  const std::vector<TrafficCounter::Row> before = world_->traffic().rows();
  const int64_t runs = net_->mlp_runs();
  const c10::DebugInfoGuard metered(c10::DebugInfoKind::PROFILER_STATE, meter_);
  const int64_t held = meter_->live;
  meter_->peak = held;
  model_->begin_step();
  const double mine = runner_ ? pass_stages(step) : pass(step);
  model_->end_step();
  measured_ = meter_->peak - held;
  check_runs(step, runs);
  Tensor loss = at::scalar_tensor(mine / static_cast<double>(data_ranks_), at::kDouble).view({1});
  model_->data_group()->all_reduce(loss, ReduceOp::sum, /*control=*/true).wait();
  const bool has_loss = !stages_ || has_last_stage(*world_, mesh_, *stages_);
  if (const double found = loss.item<double>();
      has_loss && problems_.empty() && off(found, expected_loss, tolerance_))
    fail("the loss of " + step_text(step) + " is " + number_text(found) +
         ", that of a plain loop " + number_text(expected_loss));
  check_groups(step);
  const Clipping how = clipping_of(step);
  const double norm = model_->clip_grad_norm(how.max_norm, how.scale);
  if (approximate()) use_gradients(step, exact, norm);
  check_gradients(step);
  if (problems_.empty() && off(norm, reference().norms[at], tolerance_))
    fail("the gradient norm of " + step_text(step) + " is " + number_text(norm) +
         (approximate() ? ", that of the gradients " : ", that of a plain loop ") +
         number_text(reference().norms[at]));
  update();
  if (step == kCountedStep) {
    count(before);
    check_memory();
  }
  keep_gradients();
}

void RankRun::watch(Evidence& evidence) {
  evidence_ = &evidence;
  evidence.weight = weight();
  if (mesh_.device_mesh)
    for (const MeshAxis& axis : mesh_.device_mesh->axes())
      if (axis.size > 1)
        evidence.seen.axes.push_back(
            {axis.name, mesh_.device_mesh->group(world_->rank(), axis.name)});
  if (!mesh_.device_mesh && world_->size() > 1) {
    std::vector<int64_t> all(static_cast<size_t>(world_->size()));
    std::iota(all.begin(), all.end(), 0);
    evidence.seen.axes.push_back({"dp", std::move(all)});
  }
  evidence.micro_batches = micro_batches();
  // Stages have some modules each, and samples that are one row.
  if (stages_) return;
  if (const auto context = model_->context_parallel())
    for (const PositionRun& run : context->rows_of(kLength, context->group()->rank()))
      for (int64_t i = 0; i < run.count; ++i)
        if (run.position + i < kLength) evidence.seen.positions.push_back(run.position + i);
  watch_ = std::make_unique<comparison::Watch>(*net_);
}

void RankRun::keep_gradients() {
  if (evidence_ == nullptr) return;
  if (watch_) {
    watch_->stop();
    evidence_->seen.seen = watch_->take();
    watch_.reset();
  }
  auto& kept = evidence_->gradients.emplace_back();
  for (const ParallelParameter& p : model_->parameters())
    if (sound_ && p.grad.defined() && p.grad.numel() > 0 && p.grad.sizes() == p.local.sizes())
      kept.emplace(p.name, comparison::Piece{world_->rank(), p.region, p.grad.detach().clone()});
}

void RankRun::update() {
  c10::NoGradGuard no_grad;
  const std::vector<FlatParameterGroup>& groups = model_->update_groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    momenta_[i].mul_(kMomentum).add_(groups[i].grads);
    groups[i].values.sub_(momenta_[i], kRate);
  }
  model_->values_written({ValuesWritten::By::optimizer, ++updates_});
  model_->after_optimizer_step();
}

std::vector<SavedPart> RankRun::save() const {
  std::vector<SavedPart> out;
  for (const ParallelParameter& p : model_->parameters()) {
    if (p.local.numel() == 0) continue;
    const Place place = *place_of(p.local, model_->update_groups());
    out.push_back({p.name, p.global_shape, p.region, p.local.detach().clone(),
                   alike(momenta_[place.group], place, p.local).clone()});
  }
  for (const StateTensor& kept : model_->state_tensors())
    if (kept.local.defined() && kept.local.numel() > 0)
      out.push_back({key_of(kept),
                     kept.global_shape,
                     kept.region,
                     kept.local.clone(),
                     {},
                     kept.replica.value_or(StateReplica{})});
  return out;
}

void RankRun::train(std::vector<SavedPart>& saved) {
  // Others may write values in a later version of the SDK.
  for (auto by : {ValuesWritten::By::weights, ValuesWritten::By{UINT8_MAX}}) {
    model_->values_written({by, 0});
    model_->after_optimizer_step();
  }
  check_whole(reference().states[0].parameters, "before the first step", 0);
  for (int64_t s = 0; s < kSteps; ++s) {
    if (s == kCutShortStep && !stages_) cut_short(s);
    if (s == kSavedStep) {
      // A later version of the SDK may have reasons that the plugin does not know.
      for (SaveReason reason : {SaveReason::scheduled, SaveReason{UINT8_MAX}})
        if (model_->before_save(reason, s)) model_->after_optimizer_step();
      check_whole(reference().states[kSavedStep].parameters,
                  "after " + step_text(s - 1) + " and before_save", tolerance_);
      if (sound_ && tolerance_ == kTolerance) saved = save();
      check_summon();
    }
    step(s);
  }
  check_whole(reference().states[kSteps].parameters, "after the last step", tolerance_);
}

void RankRun::resume(const TrainingState& state) {
  if (!sound_) return;
  {
    c10::NoGradGuard no_grad;
    for (const ParallelParameter& p : model_->parameters()) {
      if (p.local.numel() == 0) continue;
      const Place place = *place_of(p.local, model_->update_groups());
      Tensor(p.local).copy_(cut(state.parameters.at(p.name), p.region));
      alike(momenta_[place.group], place, p.local).copy_(cut(state.momenta.at(p.name), p.region));
    }
  }
  if (approximate()) {
    own_.states.assign(static_cast<size_t>(kSavedStep) + 1, state);
    own_.losses.resize(static_cast<size_t>(kSavedStep));
    own_.norms.resize(static_cast<size_t>(kSavedStep));
    own_.gradients.resize(static_cast<size_t>(kSavedStep));
  }
  updates_ = kSavedStep;
  ValuesWritten written{ValuesWritten::By::checkpoint, updates_};
  {
    c10::NoGradGuard no_grad;
    for (const StateTensor& kept : model_->state_tensors())
      if (const Tensor known = loaded(state, kept); !known.defined())
        written.missing.push_back(kept.state);
      else if (kept.local.defined() && kept.local.numel() > 0)
        Tensor(kept.local).copy_(cut(known, kept.region));
  }
  model_->values_written(written);
  model_->after_optimizer_step();
  check_whole(state.parameters, "after it was loaded", 0);
  for (const StateTensor& kept : model_->state_tensors())
    if (const Tensor known = loaded(state, kept); known.defined() && kept.local.defined())
      if (auto apart = difference(kept.local, cut(known, kept.region), 0))
        return fail("after it was loaded: " + key_of(kept) + " is " +
                    text_of(*apart, kept.region, kept.global_shape) + ", what was loaded is " +
                    number_text(apart->expected));
  for (int64_t s = kSavedStep; s < kSteps; ++s) step(s);
  check_whole(reference().states[kSteps].parameters, "after the last step", tolerance_);
}

}  // namespace meshwright::conformance
