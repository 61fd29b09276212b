// A model alone: its module beside its outline, its forward, its loss and its batches.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <stdexcept>

#include "meshwright/nn/attention.h"
#include "meshwright/nn/module.h"
#include "meshwright/nn/stage.h"
#include "meshwright/parallel/context_parallel.h"
#include "meshwright/parallel/parallel.h"
#include "meshwright/parallel/parallelize.h"
#include "meshwright/parallel/scalar_type.h"
#include "meshwright/parallel/tensor_parallel.h"
#include "meshwright/plugin_main.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/kit/conformance/probe.h"
#include "sdk/kit/conformance/training/model.h"
#include "sdk/kit/conformance/training/rank_run.h"
#include "sdk/kit/conformance/training/ranks.h"

namespace meshwright::conformance {

using at::Tensor;

namespace {

using Problems = std::vector<std::string>;

// Sums of many elements are rounded, whatever they add up to.
double tolerance_of(const Tensor& x) {
  return kTolerance * (1 + x.detach().abs().max().item<double>());
}

void check_parameters(const torch::nn::Module& module, const ModelOutline& outline,
                      Problems& problems) {
  const auto live = parameters_of(module);
  for (size_t i = 0; i < std::max(live.size(), outline.parameters.size()); ++i) {
    if (i >= live.size())
      return problems.push_back("the module has no parameter " + outline.parameters[i].name);
    const auto& [name, tensor] = live[i];
    const std::string found = name + " " + shape_text(tensor.sizes());
    if (i >= outline.parameters.size())
      return problems.push_back("the module has the parameter " + found + " beyond the " +
                                std::to_string(i) + " of the outline");
    const ParameterOutline& p = outline.parameters[i];
    if (p.name != name || p.shape != tensor.sizes().vec())
      return problems.push_back("parameter " + std::to_string(i + 1) + " of the module is " +
                                found + ", in the outline " + p.name + " " + shape_text(p.shape));
    if (scalar_type(p.dtype) != tensor.scalar_type())
      problems.push_back(name + " is " + std::string(at::toString(tensor.scalar_type())) +
                         ", in the outline " + std::string(dtype_name(p.dtype)));
    if (p.trainable != tensor.requires_grad())
      problems.push_back(name + (p.trainable ? " does not require" : " requires") +
                         " gradients, in the outline it is " +
                         (p.trainable ? "trainable" : "frozen"));
  }
}

void check_modules(torch::nn::Module& module, const ModelOutline& outline, Problems& problems) {
  const ModelOutline live = outline_of(module);
  for (const ModuleOutline& m : outline.modules) {
    const std::string name = m.name.empty() ? "the model itself" : m.name;
    const ModuleOutline* found = live.find_module(m.name);
    if (found == nullptr) {
      problems.push_back("the module has no " + name + ", which is in the outline");
      continue;
    }
    if ((m.kind == ModuleKind::linear || m.kind == ModuleKind::embedding) && found->kind != m.kind)
      problems.push_back(
          name + " is no meshwright::" + (m.kind == ModuleKind::linear ? "Linear" : "Embedding") +
          ", which the outline says: tensor parallelism could not cut it");
  }
  for (const auto& item : module.named_modules()) {
    const ModuleOutline* m = outline.find_module(item.key());
    if (m == nullptr || (m->kind != ModuleKind::layer && !m->name.empty())) continue;
    if (HookHost::of(*item.value()) == nullptr)
      problems.push_back((m->name.empty() ? "the model itself" : m->name) +
                         " has no hooks, so that no strategy can shard it: declare its class with "
                         "MESHWRIGHT_MODULE");
  }
  for (const auto& item : module.named_buffers())
    if (item.value().is_meta())
      problems.push_back("the buffer " + item.key() +
                         " is on the meta device: nothing would fill it");
}

}  // namespace

std::string check_module(ModelUnderTest& model, Problems& problems) {
  const std::shared_ptr<torch::nn::Module> module = model.first().module();
  if (model.first().module() != module)
    problems.push_back("module() gives another module each time: what trains is not what is saved");
  check_parameters(*module, model.outline(), problems);
  if (problems.empty()) check_modules(*module, model.outline(), problems);
  if (model.outline().max_positions > 0 && model.outline().positions_end &&
      model.first().max_positions() > model.outline().max_positions)
    problems.push_back("max_positions() is " + std::to_string(model.first().max_positions()) +
                       ", in the outline " + std::to_string(model.outline().max_positions));
  if (!problems.empty()) return "";
  ModelRequest narrow = model.request();
  narrow.storage = DType::bfloat16;
  const ModelUnderTest other(model.family(), narrow, model.code());
  check_parameters(*const_cast<ModelUnderTest&>(other).first().module(), other.outline(), problems);
  if (!problems.empty()) problems.back() = "model.torch_dtype = bfloat16: " + problems.back();
  return std::to_string(model.outline().modules.size()) + " modules, " +
         std::to_string(model.outline().parameters.size()) + " parameters";
}

namespace {

// Samples, and losses of them.
class Forward {
 public:
  Forward(ModelUnderTest& model, Problems& problems)
      : model_(model),
        problems_(problems),
        running_(model.make()),
        batch_(model.batch(*running_, 0, 0, 3)),
        output_(running_->forward(batch_.tokens)) {}

  void run() {
    if (!check_output()) return;
    check_samples();
    if (running_->generates()) check_causal();
    check_loss();
    if (problems_.empty()) check_gradients();
    check_batches();
  }

 private:
  void fail(const std::string& what) { problems_.push_back(what); }
  Tensor loss(const Tensor& output, const Tensor& targets, const Tensor& weights = {}) const {
    return running_->loss_sum(output, targets, weights, nullptr);
  }
  double value(const Tensor& targets, const Tensor& weights = {}) const {
    return loss(output_, targets, weights).item<double>();
  }

  bool check_output() {
    const std::vector<int64_t> wanted = {3, model_.length(), model_.outline().vocab_size};
    if (!output_.defined() || output_.dim() < 1 || output_.size(0) != 3 ||
        (running_->generates() && output_.sizes() != wanted))
      fail("forward of [3, " + std::to_string(model_.length()) + "] tokens gives " +
           (output_.defined() ? shape_text(output_.sizes()) : std::string("nothing")) +
           ", expected " + shape_text(wanted));
    else if (!at::isfinite(output_).all().item<bool>())
      fail("forward gives what is no number");
    return problems_.empty();
  }

  void same(const Tensor& found, const Tensor& expected, const std::string& what) {
    if (found.sizes() != expected.sizes())
      fail(what + ": forward gives " + shape_text(found.sizes()) + ", not " +
           shape_text(expected.sizes()));
    else if (const auto apart = difference(found, expected, tolerance_of(expected)))
      fail(what + ": forward gives " + number_text(apart->found) + " at " +
           element_text(apart->at, expected.sizes().vec()) + ", before " +
           number_text(apart->expected));
  }

  void check_samples() {
    c10::NoGradGuard no_grad;
    same(running_->forward(batch_.tokens), output_,
         "asked twice it gives another output, so that recomputed layers would differ");
    same(running_->forward(batch_.tokens.narrow(0, 1, 1)), output_.narrow(0, 1, 1),
         "a sample alone differs from the same one among others: it would depend on the batch");
  }

  // What stands behind a position does not change what is predicted there.
  void check_causal() {
    const int64_t length = model_.length();
    if (length < 2) return;
    c10::NoGradGuard no_grad;
    Tensor other = batch_.tokens.clone();
    other.narrow(1, length - 1, 1).add_(1).remainder_(model_.outline().vocab_size);
    same(running_->forward(other).narrow(1, 0, length - 1), output_.narrow(1, 0, length - 1),
         "a later token changes what stands before it, although generates() says that the next "
         "token is predicted");
    same(running_->forward(batch_.tokens.narrow(1, 0, length / 2)),
         output_.narrow(1, 0, length / 2), "of half the tokens");
  }

  void close(double found, double expected, double scale, const std::string& what) {
    if (!(std::abs(found - expected) <= kTolerance * (std::abs(scale) + 1e-3)))
      fail(what + ": loss_sum gives " + number_text(found) + ", expected " + number_text(expected));
  }

  void check_loss() {
    const Tensor whole = loss(output_, batch_.targets);
    if (!whole.defined() || whole.dim() != 0 || !whole.is_floating_point() ||
        !whole.requires_grad())
      return fail("loss_sum gives no float of 0 dimensions with a gradient");
    const double all = whole.item<double>();
    if (!std::isfinite(all)) return fail("loss_sum gives " + number_text(all));
    double rows = 0;
    for (int64_t i = 0; i < 3; ++i)
      rows += loss(output_.narrow(0, i, 1), batch_.targets.narrow(0, i, 1)).item<double>();
    close(rows, all, all, "the losses of three samples one by one do not add up to that of all");
    const Tensor even =
        (batch_.targets + at::ones_like(batch_.targets).cumsum(1)).remainder(2).eq(0);
    const Tensor none = at::full_like(batch_.targets, -100);
    const Tensor one = at::where(even, batch_.targets, none),
                 other = at::where(even, none, batch_.targets);
    close(value(one) + value(other), all, all,
          "the losses of two halves of the targets, the others -100, do not add up to that of all");
    close(value(none), 0, all, "of no target at all");
    const Tensor weights = even.to(at::kFloat);
    close(value(batch_.targets, weights), value(one), all,
          "a weight of 0 is not as a target of -100");
    close(value(batch_.targets, at::full_like(weights, 2)), 2 * all, all,
          "weights of 2 do not double it");
  }

  void check_gradients() {
    loss(output_, batch_.targets).backward();
    for (const auto& [name, p] : parameters_of(*running_->module())) {
      if (!p.requires_grad()) continue;
      if (!p.grad().defined())
        fail("no gradient reaches " + name +
             ": leave it out, or let the outline and the module say that it is frozen");
      else if (!at::isfinite(p.grad()).all().item<bool>())
        fail("the gradient of " + name + " holds what is no number");
    }
  }

  HostBatch host(int64_t sample, int64_t rows, int64_t step, bool training) const {
    HostBatch out;
    std::vector<Tensor> ids;
    for (int64_t i = 0; i < rows; ++i)
      ids.push_back(at::randint(0, model_.outline().vocab_size, {1, model_.length() + 1},
                                at::detail::createCPUGenerator(static_cast<uint64_t>(sample + i)),
                                at::kLong));
    const Tensor whole = at::cat(ids);
    out.tokens = whole.narrow(1, 0, model_.length()).clone();
    out.targets = whole.narrow(1, 1, model_.length()).clone();
    out.seed = 7, out.step = step, out.sample = sample, out.training = training;
    return out;
  }
  HostBatch changed(int64_t sample, int64_t rows, int64_t step, bool training = true) const {
    HostBatch out = host(sample, rows, step, training);
    running_->change_batch(out);
    return out;
  }

  void check_batches() {
    const HostBatch given = host(5, 4, 2, true), whole = changed(5, 4, 2);
    auto equal = [](const HostBatch& a, const HostBatch& b) {
      return a.tokens.equal(b.tokens) && a.targets.equal(b.targets);
    };
    for (const auto& [before, after] :
         {std::pair(given.tokens, whole.tokens), std::pair(given.targets, whole.targets)})
      if (!after.defined() || after.sizes() != before.sizes() || after.scalar_type() != at::kLong)
        return fail("change_batch() changes the shape or the type of tokens or targets");
    if (!running_->changes_batches() && !equal(given, whole))
      return fail("change_batch() changes batches, but changes_batches() says no: it is not asked");
    if (!equal(changed(5, 4, 2), whole))
      fail("change_batch() gives other batches from call to call");
    const HostBatch later = changed(7, 2, 2);
    if (!later.tokens.equal(whole.tokens.narrow(0, 2, 2)) ||
        !later.targets.equal(whole.targets.narrow(0, 2, 2)))
      fail(
          "change_batch() makes something else of samples 7 and 8 when they come alone: layouts "
          "would train on other batches");
    if (!equal(changed(5, 4, 2, false), changed(5, 4, 3, false)))
      fail("change_batch() makes something else of the samples of validation in another step");
  }

  ModelUnderTest& model_;
  Problems& problems_;
  std::unique_ptr<RunningModel> running_;
  ModelBatch batch_;
  Tensor output_;
};

}  // namespace

std::string check_forward(ModelUnderTest& model, Problems& problems) {
  Forward(model, problems).run();
  return "samples of " + std::to_string(model.length()) + " tokens" +
         (model.first().generates() ? "" : "; it makes no text") +
         (model.first().changes_batches() ? "; it changes batches" : "");
}

// A model on several ranks beside itself alone: sharded as fsdp2 does, cut by tensor and context
// parallelism, in stages, recomputed, in bfloat16.

namespace {

class Plain final : public ShardedStrategy {};
constexpr meshwright_strategy kPlain = meshwright::describe<Plain>({.name = "fsdp2"});
const Subject kPlainly{.strategy = &kPlain};

struct ModelLayout {
  const char* name;  // as settings
  int64_t ranks;
  void (*set)(SharedOptions&);
  ParallelSizes sizes = {};
  double tolerance = 1e-5;
};
constexpr double kOfBfloat16 = 0.05;

ParallelSizes sizes_of(int64_t tp, int64_t cp, int64_t pp) {
  ParallelSizes out;
  out.tp = tp, out.cp = cp, out.pp = pp;
  return out;
}

std::vector<ModelLayout> layouts() {
  using S = SharedOptions&;
  return {
      {"1 rank", 1, [](S) {}},
      {"2 ranks", 2, [](S) {}},
      {"activation_checkpointing = full", 2,
       [](S s) { s.activation_checkpointing = ActivationCheckpointing::full; }},
      {"tp_size = 2", 2, [](S) {}, sizes_of(2, 1, 1)},
      {"tp_size = 2 with sequence_parallel", 2, [](S s) { s.sequence_parallel = true; },
       sizes_of(2, 1, 1)},
      {"cp_size = 2 by all_gather", 2, [](S s) { s.context.method = ContextMethod::all_gather; },
       sizes_of(1, 2, 1)},
      {"cp_size = 2 by ring", 2, [](S s) { s.context.method = ContextMethod::ring; },
       sizes_of(1, 2, 1)},
      {"cp_size = 2 by ulysses", 2, [](S s) { s.context.method = ContextMethod::ulysses; },
       sizes_of(1, 2, 1)},
      {"pp_size = 2", 2, [](S) {}, sizes_of(1, 1, 2)},
      {"tp_size = 2 and pp_size = 2", 4, [](S) {}, sizes_of(2, 1, 2)},
      {"mp_policy.param_dtype = bfloat16",
       2,
       [](S s) { s.mp = {DType::bfloat16, DType::float32, DType::bfloat16, true}; },
       {},
       kOfBfloat16},
  };
}

MeshRequest request_of(const ModelLayout& layout) {
  ParallelDims dims;
  dims.world = layout.ranks;
  dims.tp = layout.sizes.tp, dims.cp = layout.sizes.cp, dims.pp = layout.sizes.pp;
  MeshRequest out = make_request(kPlainly, dims);
  out.config.shared().mp = {DType::float32, DType::float32, DType::float32, true};
  layout.set(out.config.shared());
  return out;
}

// What is not run, by the code of its refusal or in words; "": it runs.
struct Refusal {
  std::string code, problem;
};
bool is_refusal(const Error& error) {
  return static_cast<int>(error.code()) / 100 == 3 || error.code() == ErrorCode::bad_pipeline;
}

Refusal refusal_of(const ModelUnderTest& model, const ModelLayout& layout,
                   const MeshRequest& request) {
  ModelRequest asked = model.request();
  asked.sizes = layout.sizes;
  const SharedOptions& shared = request.config.shared();
  const auto answer = ask([&] {
    Diagnostics said;
    model.family().check_runs(asked, said);
    said.throw_if_any();
    Plain strategy;
    const TpPlan tp = strategy.translate_tp_plan(
        model.outline(), {shared.sizes.tp, shared.sequence_parallel, shared.tp_plan});
    if (shared.sizes.pp > 1) plan_pipeline(model.outline(), shared.sizes.pp, shared.pipeline);
    return std::string(shared.sizes.tp > 1 && tp.entries.empty() ? "its plan cuts nothing"
                       : shared.sequence_parallel && !cuts_sequence(tp)
                           ? "its plan cuts no sequence"
                           : "");
  });
  if (answer.value) return {*answer.value, ""};
  if (answer.error && is_refusal(*answer.error)) return {code_string(answer.error->code()), ""};
  return {"", answer.error ? one_line(*answer.error) : "check_runs threw " + answer.foreign};
}

// One rank. All ranks make the same calls in the same order.
class ModelRank {
 public:
  ModelRank(const ModelUnderTest& model, RunningModel& running, const MeshRequest& request,
            const std::shared_ptr<World>& world)
      : model_(model), running_(running), world_(world), outline_(model.outline()) {
    Plain strategy;
    mesh_ = strategy.plan_mesh(request);
    const SharedOptions& shared = request.config.shared();
    data_ranks_ = mesh_.dp * std::max<int64_t>(shared.sizes.cp, 1);
    const TpPlan tp = strategy.translate_tp_plan(
        outline_, {shared.sizes.tp, shared.sequence_parallel, shared.tp_plan});
    if (shared.sizes.pp > 1)
      stages_ = split_stages(*running_.module(), outline_, shared, mesh_, world_->rank());
    ParallelizeRequest wanted{running_.module(), outline_, mesh_, tp, request.config, world_};
    trained_ = strategy.parallelize(wanted);
    if (!stages_) return;
    runner_ = open_pipeline(*world_, mesh_, *stages_, rows());
    tied_ = tied_name(model.outline(), mesh_, *stages_, world_->rank());
  }

  void train(const Curve& alone, double tolerance, std::vector<std::string>& problems) {
    trained_->values_written({ValuesWritten::By::weights, 0});
    trained_->after_optimizer_step();
    for (int64_t step = 0; step < kModelSteps; ++step) {
      trained_->begin_step();
      const double mine = runner_ ? pass_stages(step) : pass(step);
      trained_->end_step();
      if (!tied_.empty()) sum_tied(*world_, mesh_, *stages_, *trained_, tied_);
      Tensor loss =
          at::scalar_tensor(mine / static_cast<double>(data_ranks_), at::kDouble).view({1});
      trained_->data_group()->all_reduce(loss, ReduceOp::sum, /*control=*/true).wait();
      const double norm = trained_->clip_grad_norm(kModelNorm, 1);
      if (!stages_ || has_last_stage(*world_, mesh_, *stages_))
        compare(loss.item<double>(), alone.losses, "loss", step, tolerance, problems);
      compare(norm, alone.norms, "gradient norm", step, 10 * tolerance, problems);
      update(step);
    }
    for (const ParallelParameter& p : trained_->parameters()) {
      const auto known = alone.parameters.find(p.name);
      if (known == alone.parameters.end()) continue;
      const Tensor whole = trained_->full_tensor(p.name);
      const double within = tolerance * (1 + known->second.abs().max().item<double>());
      const auto apart = difference(whole, known->second, within);
      if (apart && problems.empty())
        problems.push_back("after " + std::to_string(kModelSteps) + " steps " + p.name + " is " +
                           number_text(apart->found) + " at " +
                           element_text(apart->at, p.global_shape) + ", alone it is " +
                           number_text(apart->expected));
    }
  }

 private:
  int64_t rows() const { return kModelRows / mesh_.dp; }
  int64_t first_row() const {
    return rows() * (mesh_.device_mesh ? mesh_.device_mesh->coordinate(world_->rank(), "dp")
                                       : world_->rank());
  }

  static void compare(double found, const std::vector<double>& expected, const char* what,
                      int64_t step, double tolerance, std::vector<std::string>& problems) {
    const double known = expected[static_cast<size_t>(step)];
    if (problems.empty() && !(std::abs(found - known) <= tolerance * std::abs(known)))
      problems.push_back("the " + std::string(what) + " of step " + std::to_string(step + 1) +
                         " is " + number_text(found) + ", alone it is " + number_text(known));
  }

  // Of a sum over targets: gradients are means over the ranks that have tokens of their own.
  double weight(int64_t step) const {
    return static_cast<double>(data_ranks_) /
           static_cast<double>(model_.batch(running_, step, 0, kModelRows).count());
  }

  Tensor loss_of(int64_t step, int64_t begin, int64_t end, const Tensor& hidden) {
    const ModelBatch batch = model_.batch(running_, step, begin, end);
    const StagePart part = current_stage();
    const int64_t length = model_.length();
    Tensor targets = batch.targets, output;
    if (const std::shared_ptr<ContextParallel> context = trained_->context_parallel()) {
      SequenceScope scope = context->scope(length, end - begin);
      output = running_.forward(part.first ? context->shard(batch.tokens, 1, 0) : hidden);
      targets = context->shard(targets, 1, -100);
    } else {
      output = running_.forward(part.first ? batch.tokens : hidden);
    }
    if (!part.last) return output;
    const std::shared_ptr<TensorParallel> tp = trained_->tensor_parallel();
    return running_.loss_sum(output, targets, {},
                             tp && tp->vocabulary() ? &*tp->vocabulary() : nullptr) *
           weight(step);
  }

  // Two micro-batches of unequal size.
  double pass(int64_t step) {
    const int64_t begin = first_row(), end = begin + rows(), middle = begin + (rows() + 2) / 3;
    double sum = 0;
    for (const auto& [from, to, sync] : {std::tuple(begin, middle, GradientSync::accumulate),
                                         std::tuple(middle, end, GradientSync::reduce)}) {
      trained_->begin_micro_batch(sync);
      Tensor loss = loss_of(step, from, to, {});
      loss.backward();
      sum += loss.item<double>();
    }
    return sum;
  }

  double pass_stages(int64_t step) {
    double sum = 0;
    runner_->run(*trained_, [&](const PipelineAction& action, const Tensor& hidden) {
      const StagePart part = part_of(stages_->stages[static_cast<size_t>(action.stage)], *stages_);
      StageScope scope(part);
      const int64_t row = first_row() + action.micro_batch;
      Tensor out = loss_of(step, row, row + 1, hidden);
      if (part.last) sum += out.item<double>();
      return out;
    });
    return sum;
  }

  void update(int64_t step) {
    c10::NoGradGuard no_grad;
    for (const FlatParameterGroup& group : trained_->update_groups())
      group.values.sub_(group.grads, kModelRate);
    trained_->values_written({ValuesWritten::By::optimizer, step + 1});
    trained_->after_optimizer_step();
  }

  const ModelUnderTest& model_;
  RunningModel& running_;
  std::shared_ptr<World> world_;
  ModelOutline outline_;  // of this rank's stages
  MeshPlan mesh_;
  int64_t data_ranks_ = 1;
  std::optional<PipelinePlan> stages_;
  std::string tied_;  // this rank's name of a weight that another stage has, too
  std::unique_ptr<ParallelModel> trained_;
  std::unique_ptr<PipelineRunner> runner_;
};

}  // namespace

std::string check_layouts(const ModelUnderTest& model, std::vector<std::string>& problems) {
  const Curve alone = plain_curve(model);
  std::string trained, refused;
  for (const ModelLayout& layout : layouts()) {
    const MeshRequest request = request_of(layout);
    const Refusal refusal = refusal_of(model, layout, request);
    if (!refusal.code.empty()) {
      refused += (refused.empty() ? "; refused: " : ", ") + std::string(layout.name) + " (" +
                 refusal.code + ")";
      continue;
    }
    Findings findings{&problems, [](void* to, const char* text) {
                        static_cast<std::vector<std::string>*>(to)->emplace_back(text);
                      }};
    if (!refusal.problem.empty()) {
      findings.add(std::string(layout.name) + ": " + refusal.problem);
      continue;
    }
    // Made one after the other: what make() does need not be safe for threads.
    std::vector<std::unique_ptr<RunningModel>> each;
    for (int64_t rank = 0; rank < layout.ranks; ++rank) each.push_back(model.make());
    RunOutcome outcome =
        collect(layout.ranks, [&](const std::shared_ptr<World>& world, RankFound& found) {
          RunningModel& mine = *each[static_cast<size_t>(world->rank())];
          ModelRank(model, mine, request, world).train(alone, layout.tolerance, found.problems);
        });
    if (!outcome.refusal.empty()) outcome.problems[-1] = {"it stops with " + outcome.refusal};
    for (auto& [rank, found] : outcome.problems)
      if (found.front().starts_with("error["))
        found.front() += "; what a model does not run with is for check_runs to say";
    tell(outcome, layout.name, findings);
    trained += (trained.empty() ? "" : ", ") + std::string(layout.name);
    if (problems.size() >= Report::kMaxProblems) break;
  }
  return "as alone with " + trained + refused;
}

}  // namespace meshwright::conformance
