// A model on several ranks beside itself alone: sharded as fsdp2 does, cut by tensor and context
// parallelism, in stages, recomputed, in bfloat16.
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <stdexcept>

#include "meshwright/nn/attention.h"
#include "meshwright/nn/stage.h"
#include "meshwright/parallel/context_parallel.h"
#include "meshwright/parallel/parallelize.h"
#include "meshwright/parallel/tensor_parallel.h"
#include "meshwright/plugin_main.h"
#include "sdk/kit/conformance/probe.h"
#include "sdk/kit/conformance/training/model.h"
#include "sdk/kit/conformance/training/parts.h"
#include "sdk/kit/conformance/training/ranks.h"
#include "sdk/kit/conformance/training/stages.h"

namespace meshwright::conformance {

using at::Tensor;

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
  out.config.shared.mp = {DType::float32, DType::float32, DType::float32, true};
  layout.set(out.config.shared);
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
  const SharedOptions& shared = request.config.shared;
  const auto answer = ask([&] {
    Diagnostics said;
    model.family().check_runs(asked, said);
    said.throw_if_any();
    Plain strategy;
    const TpPlan tp = strategy.translate_tp_plan(
        model.outline(), {shared.sizes.tp, shared.sequence_parallel, shared.tp_plan});
    if (shared.sizes.pp > 1) plan_pipeline(model.outline(), shared.sizes.pp, shared.pipeline);
    return shared.sizes.tp == 1 || !tp.entries.empty();
  });
  if (answer.value) return {*answer.value ? "" : "its plan cuts nothing", ""};
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
    const SharedOptions& shared = request.config.shared;
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
    Outcome outcome =
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
