// One class, long because all of a step works on its private state.
#include "meshwright/trainer.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "engine/config/cross_checks.h"
#include "engine/job/adapters.h"
#include "engine/job/parameter_groups.h"
#include "engine/job/plan.h"
#include "engine/models/running/layer_graphs.h"
#include "engine/train/step/adapters.h"
#include "engine/train/step/load_weights.h"
#include "engine/train/step/logits.h"
#include "engine/train/step/model.h"
#include "engine/train/step/optimizer.h"
#include "engine/train/step/rank_agreement.h"
#include "engine/train/step/stages.h"
#include "engine/train/step/step_monitor.h"
#include "meshwright/nn/loss.h"
#include "meshwright/parallel/context_parallel.h"
#include "meshwright/parallel/parallelize.h"
#include "meshwright/parallel/scalar_type.h"
#include "sdk/base/check_parts.h"
#include "sdk/base/host/run_lock.h"
#include "sdk/base/plugin_guard.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/trace_span.h"
#include "sdk/base/transport.h"
#include "sdk/base/words.h"

namespace meshwright {

using at::Tensor;

struct Trainer::Parts {
  StrategyConfig config;
  train::Schedule schedule;
  double max_grad_norm;
  bool stop_on_nonfinite;
  std::optional<at::ScalarType> autocast;
  uint64_t seed;
  int64_t place;  // place_of_draws()
  train::StepMonitor monitor;
  std::shared_ptr<train::AdapterDropout> dropout = nullptr;  // of adapters

  // Of the forward that comes.
  void tell_place(const train::MicroBatchPlace& where) const {
    if (dropout) dropout->begin(where);
  }
};

namespace {

// The job names no model: its tensor-parallel plan is made for the module itself.
void plan_own_module(plan::JobPlan& plan, const ModelOutline& outline, World& world) {
  const SharedOptions& shared = plan.shared;
  if (shared.sizes.tp <= 1) return;
  plan.tp = plan.strategy.strategy->translate_tp_plan(
      outline, {shared.sizes.tp, shared.sequence_parallel, shared.tp_plan});
  if (plan.tp.entries.empty() && shared.tp_plan.kind == TpPlanChoice::Kind::automatic)
    throw Error(ErrorCode::tp_plan_does_not_fit,
                "tp_size = " + std::to_string(shared.sizes.tp) +
                    ", but no tensor-parallel plan is known for " + outline.architecture +
                    ", and the base plan names none of its modules")
        .key("distributed.tp_plan")
        .help(
            "write a [distributed.tp_plan] table of pattern = style for its Linear and Embedding "
            "modules")
        .help("set distributed.tp_size = 1");
  for (const auto* said : {&plan.tp.notices, &plan.tp.warnings})
    for (const std::string& text : *said) world.notice(text);
}

// The sharding plan that was shown, where it was made of the parameters that this rank runs.
const ShardingPlan* as_planned(const plan::JobPlan& plan, const ModelOutline& runs) {
  if (!plan.sharding) return nullptr;
  const ModelOutline planned = plan::outline_of_rank(plan);
  auto parameter = [](const ParameterOutline& p) {
    return std::tie(p.name, p.shape, p.dtype, p.trainable);
  };
  auto module = [](const ModuleOutline& m) { return std::tie(m.name, m.kind, m.class_name); };
  const bool same =
      std::ranges::equal(planned.parameters, runs.parameters, {}, parameter, parameter) &&
      std::ranges::equal(planned.modules, runs.modules, {}, module, module);
  return same ? plan.sharding.get() : nullptr;
}

int64_t steps_of(const plan::JobPlan& plan) {
  if (plan.max_steps) return *plan.max_steps;
  throw Error(ErrorCode::missing_key,
              "step_scheduler.epochs counts how often the engine reads [dataset], but this program "
              "feeds samples of its own")
      .key("step_scheduler.epochs")
      .help("set step_scheduler.max_steps = 200 and step_scheduler.epochs = \"none\"");
}

// A plan without a model does not know what the strategy updates.
void warn_of_narrow_updates(plan::JobPlan& plan, const ParallelModel& model,
                            const train::Optimizer& optimizer) {
  for (const FlatParameterGroup& group : model.update_groups()) {
    at::ScalarType updated = optimizer.weight_type(group.values.scalar_type());
    if (updated != at::kBFloat16 && updated != at::kHalf) continue;
    const DType narrow = updated == at::kHalf ? DType::float16 : DType::bfloat16;
    plan::check_state(optimizer.name(), narrow);
    std::string warning = plan::narrow_update_warning(optimizer.name(), narrow);
    if (std::ranges::find(plan.warnings, warning) == plan.warnings.end())
      plan.warnings.push_back(warning);
  }
}

}  // namespace

Trainer::Trainer(Job& job, std::shared_ptr<World> world, std::shared_ptr<torch::nn::Module> model,
                 std::optional<ModelOutline> outline, int64_t expected_count)
    : job_used_(job.used_),
      world_(std::move(world)),
      module_(std::move(model)),
      expected_(expected_count) {
  outline_ = std::make_unique<ModelOutline>(outline ? std::move(*outline) : outline_of(*module_));
  const config::Config& config = job.impl().config;
  const Options &run = config.table("run"), &lora = config.table("lora"),
                &optimizer = config.table("optimizer");
  const auto seed = static_cast<uint64_t>(run.get_int("seed"));
  plan::say_what_is_seen(*outline_, config.shared.tp_plan);
  plan::PlanRequest wanted{
      .world_size = world_->size(),
      .rank = world_->rank(),
      .where = world_->device().is_cpu() ? MemoryFacts::Where::host : MemoryFacts::Where::device};
  if (config.shared.sizes.cp > 1 && !config.shared.context.method) {
    const base::LockOwner self = base::this_process();
    wanted.hosts = train::hosts_of_ranks(*world_, self.host + " " + self.boot);
  }
  plan_ = std::make_unique<plan::JobPlan>(plan::make_plan(job.impl(), wanted));
  const plan::Adapters adapters = plan::add_adapters(config, *outline_);
  plan_->lora = lora;
  if (adapters.any())
    plan_->adapter_config =
        plan::peft_config(adapters, *outline_, config.table("model").get_string("pretrained"));
  train::attach_adapters(adapters, *outline_, *module_, seed);
  if (const std::string folder = lora.get_string("adapter");
      adapters.any() && !job.impl().fills_adapters && !folder.empty())
    train::agree_or_throw(*world_, [&] {
      Diagnostics found;
      plan::check_adapter_folder(job.impl(), found);
      found.throw_if_any();
      train::read_adapters(folder, *outline_, *module_);
    });
  const plan::ParameterGroups groups =
      train::freeze_parameters(config, *outline_, *module_, *plan_);
  max_steps_ = steps_of(*plan_);
  accumulation_ = plan_->workload.accumulation;
  local_batch_ = plan_->workload.local_batch;
  dp_ = plan_->mesh.dp;
  const std::optional<Mesh>& mesh = plan_->mesh.device_mesh;
  dp_rank_ = mesh ? mesh->coordinate(world_->rank(), "dp") : world_->rank();
  const loader::StrategyInfo& strategy = *plan_->strategy.info;
  std::optional<double> skip_above;
  if (run.is_set("skip_step_above_z")) skip_above = run.get_number("skip_step_above_z");
  parts_ = std::make_unique<Parts>(
      Parts{config.strategy_config({strategy.name, strategy.aliases, strategy.schema}),
            train::Schedule(optimizer, config.table("lr_scheduler"), max_steps_),
            optimizer.is_set("max_grad_norm") ? optimizer.get_number("max_grad_norm") : 0,
            run.get_bool("stop_on_nonfinite"), std::nullopt, seed,
            /*place=*/0, train::StepMonitor(skip_above, *world_)});
  SharedOptions& shared = parts_->config.shared();
  shared.context = plan_->shared.context;  // as planned for these hosts
  shared.pipeline = plan_->shared.pipeline;
  shared.moe.dispatcher = plan_->shared.moe.dispatcher;
  parts_->config.job().max_steps = max_steps_;
  if (shared.autocast_dtype) parts_->autocast = scalar_type(*shared.autocast_dtype);
  if (run.get_bool("deterministic")) at::globalContext().setDeterministicAlgorithms(true, false);
  if (const std::string told =
          train::set_float32_products(run, config.table("dist_env"), world_->device());
      !told.empty())
    world_->notice(told);
  if ((strategy.capabilities & MESHWRIGHT_CAN_PARALLELIZE) == 0)
    throw Error(ErrorCode::not_in_release, "the strategy " + strategy.name +
                                               " can plan a job but not train it in this version")
        .key("distributed.strategy")
        .help("set distributed.strategy = \"fsdp2\"");
  if (!plan_->outline) plan_own_module(*plan_, *outline_, *world_);
  parts_->place = train::place_of_draws(*plan_);
  // Of all of the model, before a rank has only its stages of it.
  routers_ = std::make_unique<train::Routers>(*module_, !shared.moe.ignore_router_for_ac,
                                              shared.moe.fake_balanced_gate);
  if (shared.sizes.pp > 1) {
    if (shared.sizes.ep > 1 && !routers_->any())
      throw Error(ErrorCode::model_does_not_fit,
                  "the model " + outline_->architecture + " has no mixture-of-experts blocks")
          .key("distributed.ep_size")
          .help("set distributed.ep_size = 1");
    routers_->refuse_balance_over_stages();
    stages_ = std::make_unique<train::Stages>(*plan_, parts_->config, *outline_, *module_, *world_);
    routers_->forget_others(*module_);
    accumulation_ = stages_->runs() * stages_->micro_batches();
    local_batch_ = shared.pipeline.microbatch_size;
  }
  const ModelOutline& here = stages_ ? stages_->outline() : *outline_;
  if (config.table("model").get_bool("float8_linear"))
    train::multiply_in_float8(*module_, here, world_->device());
  ParallelizeRequest request{
      module_, here, plan_->mesh, plan_->tp, parts_->config, world_, as_planned(*plan_, here)};
  detail::this_is_rank(world_->rank());
  model_ = detail::guarded_model(plan_->strategy.plugin->code,
                                 plan_->strategy.strategy->parallelize(request));
  if (!model_)
    throw Error(ErrorCode::plugin_nonconforming,
                "parallelize of the strategy " + strategy.name + " returned nothing");
  detail::check_parts(*model_, *module_, shared.sizes, plan_->tp, strategy.name);
  if (adapters.dropout > 0)
    parts_->dropout = std::make_shared<train::AdapterDropout>(
        adapters.dropout, seed, shared.sizes.tp > 1 ? mesh->coordinate(world_->rank(), "tp") : 0,
        shared.sizes.tp);
  train::run_adapters(adapters, *outline_, *module_, parts_->dropout);
  using plan::LayerGraphsUse;
  const bool graphs =
      plan_->layer_graphs == LayerGraphsUse::required ||
      (plan_->layer_graphs == LayerGraphsUse::where_possible && world_->device().is_cuda());
  // A stage at an end may have no layers.
  if (graphs && (!stages_ || !layer_names(here, {"all"}).empty()))
    modules::graph_layers(*module_, world_->device());
  if (stages_) stages_->check_tied(*model_);
  if (!plan_->outline && model_->context_parallel())
    world_->notice("the plan does not count what attention of " + outline_->architecture +
                   " sends over cp: its heads and windows are not known before it runs");
  optimizer_ = train::make_optimizer(optimizer);
  optimizer_->set_classes(train::update_classes(*model_, stages_ ? &here : nullptr, groups));
  warn_of_narrow_updates(*plan_, *model_, *optimizer_);
  if (model_->context_parallel()) routers_->share_samples(model_->context_parallel()->group());
  data_ = model_->data_group();
  replicas_differ_ = !model_->independent_axis().empty();
  expect_all_reduces(*data_, 4096);  // for the sums of each step
  if (world_->size() > 1 && world_->device().is_cpu())
    if (const std::string told =
            train::unlike_vectors(train::gather_texts(*world_, at::get_cpu_capability()));
        !told.empty() && world_->rank() == 0)
      world_->notice(told);
  const bool float16 = config::float16_gradients(config) ||
                       std::ranges::any_of(outline_->parameters, [](const ParameterOutline& p) {
                         return p.trainable && p.dtype == DType::float16;
                       });
  parts_->monitor.scale_losses(
      plan::loss_scale(config, float16, static_cast<double>(expected_ * accumulation_)));
}

Trainer::~Trainer() = default;

void Trainer::set_optimizer(OwnOptimizer optimizer) {
  std::unique_ptr<train::Optimizer> made =
      train::make_own_optimizer(std::move(optimizer), *optimizer_);
  for (const StateTensor& kept : model_->state_tensors())
    for (const train::Optimizer::State& own : made->state())
      if (kept.state == own.name)
        throw Error(ErrorCode::conflict, "Trainer::set_optimizer() got the state " + own.name +
                                             ", which the strategy keeps itself")
            .help("give OwnOptimizer::states other names");
  optimizer_ = std::move(made);
}

void Trainer::tell_written(const ValuesWritten& written) {
  if (model_->values_written(written)) optimizer_->take_over(model_->update_groups());
  model_->after_optimizer_step();
}

void Trainer::before_save(SaveReason reason) {
  if (!model_->before_save(reason, parts_->monitor.updates(step_))) return;
  optimizer_->take_over(model_->update_groups());
  model_->after_optimizer_step();
}

double Trainer::largest_norm(double mine) {
  const bool finite = std::isfinite(mine);
  const auto both = train::largest_of_ranks(*world_, {finite ? mine : 0.0, finite ? 0.0 : 1.0});
  return both[1] == 0 ? both[0] : std::nan("");
}

train::Optimizer& train::optimizer_of(Trainer& trainer) { return *trainer.optimizer_; }
train::StepMonitor& train::monitor_of(Trainer& trainer) { return trainer.parts_->monitor; }
train::Routers& train::routers_of(Trainer& trainer) { return *trainer.routers_; }

namespace {

double weight_of(const MicroBatchLoss& loss) {
  return loss.weight.value_or(static_cast<double>(loss.count));
}

constexpr int64_t kSums = 5;  // of micro-batches, before what ranks tell

// `more`: undefined, or what the mean loss of its targets, of this weight, has on top.
void add_loss(Tensor& sum, const Tensor& loss, const Tensor& more, double weight) {
  Tensor one = loss.detach().to(at::kDouble);
  if (more.defined()) one = one + more.to(at::kDouble) * weight;
  sum = sum.defined() ? sum.add_(one) : one;
}

}  // namespace

void Trainer::Sums::add(const MicroBatchLoss& of, double weighs) {
  count += static_cast<double>(of.count);
  tokens += static_cast<double>(of.tokens.value_or(of.count));
  positions += static_cast<double>(of.positions.value_or(of.count));
  weight += weighs;
}

// Sums of all data-parallel ranks. On a device the host waits here, once, for all that was started.
// Votes ride along where the data-parallel group is the whole world. On other meshes it is one of
// several (one per tensor-parallel rank, say), each of which would hear its own votes alone: there
// they are summed over everyone, so that all ranks learn of them in the same step and each counts
// once. So it is with the times of the ranks.
Trainer::Totals Trainer::totals(const Sums& of_rank, bool with_votes, const Tensor& more) {
  // Pinned, so that the copy to a device keeps nobody waiting.
  const at::TensorOptions options =
      at::TensorOptions().dtype(at::kDouble).pinned_memory(world_->device().is_cuda());
  // Stages but the last have no losses; expert loads are of the stage that has the layer.
  const std::shared_ptr<Group> pipeline = stages_ ? stages_->group() : nullptr;
  const bool everyone = data_->size() * (pipeline ? pipeline->size() : 1) == world_->size();
  train::StepMonitor& monitor = parts_->monitor;
  const auto votes = static_cast<int64_t>(votes_.size());
  train::SourceLosses& sources = monitor.sources();
  const int64_t told = votes + (with_votes ? monitor.slots() : 0),  // by ranks, behind the sums
      mixed = kSums + told,                                         // of the sources of a mix
      begin = mixed + (with_votes ? sources.slots() : 0),           // of `more`
      size = begin + (more.defined() ? more.numel() : 0);
  Tensor mine = at::zeros({size}, options);
  double* values = mine.mutable_data_ptr<double>();
  values[1] = of_rank.count;
  values[2] = of_rank.weight;
  values[3] = of_rank.tokens;
  values[4] = of_rank.positions;
  if (with_votes) {
    std::copy(votes_.begin(), votes_.end(), values + kSums);
    votes_ = {};
    if (monitor.slots() > 0) monitor.write_work(values + kSums + votes);
    sources.write(values + mixed);
  }
  auto on_device = [&](const Tensor& t) {
    return t.to(world_->device(), at::kDouble, /*non_blocking=*/true, /*copy=*/true);
  };
  Tensor sums = on_device(mine);
  if (of_rank.loss.defined()) sums.select(0, 0).copy_(of_rank.loss);
  if (with_votes && sources.sums().defined())
    sums.narrow(0, mixed, sources.sources()).copy_(sources.sums());
  const Tensor more_sums = sums.narrow(0, begin, size - begin);
  if (more.defined()) more_sums.copy_(more);
  if (everyone) {
    world_->everyone()->all_reduce(sums, ReduceOp::sum, /*control=*/true).wait();
  } else {
    data_->all_reduce(sums, ReduceOp::sum, /*control=*/true).wait();
    if (pipeline) pipeline->all_reduce(sums, ReduceOp::sum, /*control=*/true).wait();
  }
  if (with_votes && !everyone) {
    Tensor all = on_device(mine.narrow(0, kSums, told));
    world_->everyone()->all_reduce(all, ReduceOp::sum, /*control=*/true).wait();
    sums.narrow(0, kSums, told).copy_(all);
  }
  mine.copy_(sums);
  world_->check();
  const double* summed = mine.const_data_ptr<double>();
  if (with_votes && monitor.slots() > 0) monitor.read_work(summed + kSums + votes);
  if (with_votes) sources.read(summed + mixed);
  Totals out{summed[0],
             summed[1],
             summed[2],
             summed[3],
             summed[4],
             {},
             mine.narrow(0, begin, size - begin),
             more_sums};
  for (size_t i = 0; i < out.votes.size(); ++i)
    out.votes[i] = static_cast<int64_t>(summed[kSums + static_cast<int64_t>(i)]);
  return out;
}

// A loop whose forward knows no stages.
Trainer::StageForward Trainer::alone(const Forward& forward) const {
  if (stages_)
    throw Error(ErrorCode::bad_module,
                "pp_size = " + std::to_string(parts_->config.shared().sizes.pp) +
                    ", but the training loop's forward(micro) takes no hidden states of the stage "
                    "before")
        .key("distributed.pp_size")
        .help("give step() and evaluate() a forward(micro, hidden), as meshwright/trainer.h says")
        .help("set distributed.pp_size = 1");
  return [&forward](int64_t micro, const Tensor&) { return forward(micro); };
}
StepResult Trainer::step(const Forward& forward) { return step(alone(forward)); }
double Trainer::evaluate(int64_t micro_batches, const Forward& forward) {
  return evaluate(micro_batches, alone(forward));
}

void Trainer::train_micro_batches(const StageForward& forward, double assumed, Sums& sums) {
  for (int64_t micro = 0; micro < accumulation_; ++micro) {
    model_->begin_micro_batch(micro + 1 == accumulation_ ? GradientSync::reduce
                                                         : GradientSync::accumulate);
    MicroBatchLoss loss;
    parts_->tell_place({step_, (micro * dp_ + dp_rank_) * local_batch_, local_batch_});
    {
      TraceSpan span(world_->trace(), "forward");
      train::AutocastScope autocast(parts_->autocast, world_->device().type());
      loss = forward(micro, Tensor());
    }
    const double weight = weight_of(loss);
    sums.add(loss, weight);
    {
      TraceSpan span(world_->trace(), "backward");
      routers_->before_backward(routers_->weigh(weight), assumed);
      (loss.sum / assumed).backward();
    }
    const Tensor more = routers_->reported_loss();
    add_loss(sums.loss, loss.sum, more, weight);
    parts_->monitor.sources().add_told(more);
  }
}

void Trainer::train_stages(const StageForward& forward, double assumed, Sums& sums) {
  std::vector<train::Routers::Weight> weights(static_cast<size_t>(accumulation_));
  auto one = [&](int64_t stage, int64_t micro, const Tensor& hidden) {
    at::manual_seed(train::forward_seed(parts_->seed, step_, stages_->first_layer(stage), micro,
                                        parts_->place));
    parts_->tell_place({step_, (micro * dp_ + dp_rank_) * local_batch_, local_batch_});
    train::AutocastScope autocast(parts_->autocast, world_->device().type());
    MicroBatchLoss loss = forward(micro, hidden);
    weights[static_cast<size_t>(micro)] = routers_->weigh(weight_of(loss));
    if (!stages_->is_last(stage)) return loss.sum;
    sums.add(loss, weight_of(loss));
    add_loss(sums.loss, loss.sum, Tensor(), 0);
    parts_->monitor.sources().add_told(Tensor());
    return loss.sum / assumed;
  };
  auto before = [&](int64_t micro) {
    routers_->before_backward(weights[static_cast<size_t>(micro)], assumed);
  };
  for (int64_t run = 0; run < stages_->runs(); ++run) stages_->train(*model_, run, one, before);
}

StepResult Trainer::step(const StageForward& forward) try {
  c10::DeviceGuard guard(world_->device());
  StepResult result;
  result.step = step_;
  result.lr = learning_rate_ ? learning_rate_(step_) : parts_->schedule.at(step_);
  if (!std::isfinite(result.lr) || result.lr < 0)
    throw Error(ErrorCode::out_of_range, "the learning rate of step " + std::to_string(step_) +
                                             " is " + text::short_number(result.lr))
        .help(
            "give Trainer::set_learning_rate() a function whose numbers are finite and not below "
            "0");
  // Gradients are summed at a scale that is known before the labels are counted: as if every target
  // counted. What is missing is made good by one factor in the pass that clips, and so is what
  // keeps gradients in float16 above zero.
  train::StepMonitor& monitor = parts_->monitor;
  const double loss_scale = monitor.loss_scale(),
               assumed = static_cast<double>(expected_ * accumulation_) / loss_scale;
  Sums sums;
  optimizer_->in_use = true;
  monitor.begin_step();
  routers_->begin_step();
  model_->begin_step();
  if (stages_)
    train_stages(forward, assumed, sums);
  else
    train_micro_batches(forward, assumed, sums);
  // totals() waits for the current stream, and thereby for gradients that go to the host.
  model_->end_step_deferred();
  if (stages_) stages_->sum_tied_gradients(*model_);
  const Totals all = totals(sums, /*with_votes=*/true, routers_->load());
  throw_bad_target();
  result.vote_counts = all.votes;
  result.count = static_cast<int64_t>(all.count);
  result.tokens = static_cast<int64_t>(all.tokens);
  result.positions = static_cast<int64_t>(all.positions);
  result.experts = routers_->read_load(all.more.const_data_ptr<double>());
  result.loss = all.weight > 0 ? all.loss / all.weight : 0;
  double scale = all.weight > 0 ? assumed * static_cast<double>(data_->size()) / all.weight : 0;
  double left = 1;  // for the optimizer to multiply all gradients with
  result.grad_norm = before_update_
                         ? model_->clip_grad_norm(parts_->max_grad_norm, scale)
                         : model_->clip_grad_norm_deferred(parts_->max_grad_norm, scale, left);
  // What one replica finds must stop all.
  if (replicas_differ_) result.grad_norm = largest_norm(result.grad_norm);
  // The host has read the norm, or, where a collective was given up meanwhile, anything.
  world_->check();
  if (parts_->stop_on_nonfinite && !monitor.overflowed(result) &&
      (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)))
    train::throw_nonfinite(result, *model_, *outline_, stages_.get(), loss_scale, *world_);
  if (monitor.judge(result, *world_)) {
    train::multiply_gradients(model_->update_groups(), left);
    // The values are what they were. A strategy that gathers ahead after an update does so now.
    model_->after_optimizer_step();
  } else {
    if (before_update_) before_update_();
    TraceSpan span(world_->trace(), "optimizer");
    optimizer_->step(model_->update_groups(), result.lr, left);
    tell_written({ValuesWritten::By::optimizer, monitor.updates(step_ + 1)});
    routers_->update_biases(result.experts, all.more_on_device);
  }
  ++step_;
  monitor.end_step();
  return result;
} catch (Error& error) {
  // What was told at the start may be why some rank does not come: a layout that all ranks must use
  // alike, say.
  if (error.code() == ErrorCode::collective_timeout)
    for (const std::string& notice : world_->notices()) error.note("told at the start: " + notice);
  throw;
}

double Trainer::evaluate(int64_t micro_batches, const StageForward& forward) {
  return train::Evaluator::run(*this, micro_batches, forward).loss;
}

train::Evaluation train::Evaluator::run(Trainer& trainer, int64_t micro_batches,
                                        const Trainer::StageForward& forward) {
  const Trainer::Totals all = trainer.evaluate_totals(micro_batches, forward);
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const bool balanced = all.more.numel() > 0 && all.weight > 0;
  return {.loss = all.weight > 0 ? all.loss / all.weight : kNone,
          .auxiliary = balanced ? all.more.const_data_ptr<double>()[0] / all.weight : kNone,
          .weight = all.weight,
          .targets = static_cast<int64_t>(all.count)};
}

Trainer::Totals Trainer::evaluate_totals(int64_t micro_batches, const StageForward& forward) {
  c10::NoGradGuard no_grad;
  bool training = module_->is_training();
  module_->eval();
  Sums sums;
  Tensor auxiliary;  // of the routers, by what targets weigh
  auto one = [&](bool with_loss, int64_t micro, const Tensor& hidden) {
    train::AutocastScope autocast(parts_->autocast, world_->device().type());
    MicroBatchLoss loss = forward(micro, hidden);
    if (!with_loss) return loss.sum;
    const double weight = weight_of(loss);
    add_loss(sums.loss, loss.sum, Tensor(), 0);
    if (const Tensor of_routers = stages_ ? Tensor() : routers_->reported_loss();
        of_routers.defined())
      add_loss(auxiliary, of_routers.reshape({1}) * weight, Tensor(), 0);
    sums.add(loss, weight);
    return loss.sum;
  };
  if (stages_)
    stages_->evaluate(*model_, micro_batches, [&](int64_t stage, int64_t micro, const Tensor& h) {
      return one(stages_->is_last(stage), micro, h);
    });
  else
    for (int64_t micro = 0; micro < micro_batches; ++micro) one(true, micro, Tensor());
  module_->train(training);
  Totals all = totals(sums, /*with_votes=*/false, auxiliary);
  throw_bad_target();
  return all;
}

}  // namespace meshwright
