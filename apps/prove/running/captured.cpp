#include "apps/prove/running/captured.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <iterator>

#include "engine/job/plan.h"
#include "engine/models/models.h"
#include "engine/train/step/local_state.h"
#include "engine/train/step/logits.h"
#include "engine/train/step/model.h"
#include "engine/train/step/stages.h"
#include "meshwright/data/dataset_kind.h"
#include "meshwright/nn/moe.h"
#include "meshwright/parallel/context_parallel.h"
#include "meshwright/tp_plan.h"
#include "sdk/base/files/hash.h"
#include "sdk/kit/comparison/pieces.h"

namespace meshwright::prove {

using at::Tensor;

namespace {

// In [-1, 1] and never zero; so few of them that bfloat16 has each.
double value_at(uint64_t seed, int64_t index) {
  const uint64_t bits = random_bits(seed, 7, static_cast<uint64_t>(index));
  const double size = static_cast<double>(1 + (bits >> 1) % 32) / 32;
  return (bits & 1) != 0 ? size : -size;
}

// The whole parameter, the same for everyone: nothing is zero or one, so that a norm, a bias or a
// router that is misplaced changes something.
Tensor values_of(const std::string& name, const std::vector<int64_t>& shape, double mean) {
  Tensor out = at::empty(shape, at::kDouble);
  auto* values = out.mutable_data_ptr<double>();
  const uint64_t seed = base::fnv1a(name);
  const double reach = shape.size() < 2 ? 0.25 : 0.5;
  for (int64_t i = 0; i < out.numel(); ++i) values[i] = mean + reach * value_at(seed, i);
  return out;
}

class Running {
 public:
  Running(const Request& request, const std::string& toml, const std::vector<std::string>& sets,
          const std::shared_ptr<World>& world, const Different& different)
      : request_(request),
        different_(different),
        job_(Job::from_text(toml, sets)),
        model_(train::make_model(job_)),
        trainer_(own(job_), world, model_.module(), model_.outline,
                 request.job.rows * request.job.length),
        watch_(*model_.module()) {
    if (!different_.operators_of.empty())
      operators_.emplace(*model_.module(), different_.operators_of);
  }

  Captured run() {
    out_.accumulation = trainer_.accumulation();
    describe();
    if (different_.from.empty()) {
      fill();
      if (different_.without_auxiliary)
        for (const auto& [name, block] : find_moe_blocks(*model_.module()))
          block->gate()->load_balance = nullptr;
      train_steps();
    } else {
      trainer_.load(different_.from);
      out_.states.push_back(state());
      model_.module()->train();
    }
    if (!different_.to.empty()) save();
    if (!different_.to.empty() || !different_.from.empty()) {
      trainer_.before_update({});
      model_.module()->train();
      out_.next = step();
    }
    return std::move(out_);
  }

 private:
  static Job& own(Job& job) {
    job.impl().fills_adapters = true;
    return job;
  }

  void train_steps() {
    out_.states.push_back(state());
    trainer_.before_update([this] { keep_gradients(); });
    model_.module()->train();
    for (int64_t done = 0; done < (different_.one_step ? 1 : request_.steps); ++done) {
      first_ = done == 0;
      out_.steps.push_back(step());
      if (first_) {
        watch_.stop();
        out_.seen.seen = watch_.take();
        if (operators_) {
          operators_->stop();
          out_.operators = operators_->take();
        }
      }
      const Options& optimizer = job_.table("optimizer");
      const double most = optimizer.is_set("max_grad_norm") ? optimizer.get_number("max_grad_norm")
                                                            : 0,
                   norm = out_.steps.back().grad_norm;
      out_.clipped_by.push_back(most > 0 ? std::min(1.0, most / (norm + 1e-6))
                                         : 1);  // semantics 8.3
      out_.states.push_back(state());
    }
    first_ = false;
    if (different_.one_step) return;
    out_.evaluated = trainer_.evaluate(
        trainer_.accumulation(),
        [&](int64_t micro, const Tensor& hidden) { return loss(request_.steps, micro, hidden); });
    out_.evaluated_state = state();
    batches_.clear();
  }

  StepResult step() {
    if (train::Stages* stages = trainer_.stages()) stages->set_length(request_.job.length);
    StepResult out = trainer_.step([&](int64_t micro, const Tensor& hidden) {
      return loss(trainer_.next_step(), micro, hidden);
    });
    batches_.clear();
    if (request_.progress && trainer_.world().rank() == 0)
      request_.progress(trainer_.world().size());
    return out;
  }

  // A refusal is the same on all ranks, which go on.
  void save() {
    try {
      trainer_.save(different_.to);
    } catch (const Error& error) {
      out_.not_saved = error;
    }
    // Values may have moved for it (ParallelModel::before_save()), their names may not.
    out_.saved = state();
    const std::vector<Part>& trained = out_.states.back();
    for (size_t i = 0; i < out_.saved.size() && trained.size() == out_.saved.size(); ++i)
      if (trained[i].values.sizes() == out_.saved[i].values.sizes()) {
        out_.saved[i].name = trained[i].name;
        out_.saved[i].region = trained[i].region;
      }
  }

  // Micro-batches counted over all ranks: the same samples are the same micro-batch of the one
  // process, which auxiliary losses need.
  int64_t global(int64_t micro) const {
    return micro * trainer_.data_parallel_size() + trainer_.data_parallel_rank();
  }

  MicroBatchLoss loss(int64_t step, int64_t micro, const Tensor& hidden) {
    if (first_) watch_.begin(global(micro));
    if (first_ && operators_) operators_->begin(global(micro));
    const int64_t rows = request_.job.rows, length = request_.job.length;
    batches_.push_back(std::make_unique<Batch>(step, global(micro) * rows, rows, length,
                                               model_.outline.vocab_size, request_.job.documents));
    MicroBatchLoss out = train::loss_of(trainer_, *model_.running, batches_.back()->batch, hidden);
    if (different_.micro_batch >= 0 && global(micro) != different_.micro_batch)
      out.sum = out.sum * 0;
    return out;
  }

  // Samples of a micro-batch; backward may ask for what it points to.
  struct Batch {
    Batch(int64_t step, int64_t first, int64_t rows, int64_t length, int64_t vocabulary,
          bool documents)
        : tokens(at::empty({rows, length}, at::kLong)), targets(at::empty_like(tokens)) {
      Tensor ids = at::empty({rows, length}, at::kInt), positions = at::empty_like(tokens);
      auto *token = tokens.mutable_data_ptr<int64_t>(),
           *target = targets.mutable_data_ptr<int64_t>(),
           *position = positions.mutable_data_ptr<int64_t>();
      auto* document = ids.mutable_data_ptr<int32_t>();
      // Micro-batches, and so ranks, have from all to next to none of their targets.
      constexpr double kShares[] = {1.0, 0.1, 0.6, 0.03, 0.8};
      for (int64_t row = 0; row < rows; ++row) {
        const auto sample = static_cast<uint64_t>(first + row);
        const double share = kShares[static_cast<size_t>(first / rows) % std::size(kShares)];
        auto unit = [&](uint64_t stream, int64_t i) {
          return random_unit(sample * 1000003 + static_cast<uint64_t>(step), stream,
                             static_cast<uint64_t>(i));
        };
        int64_t from = 0;  // of the document
        int32_t number = 0;
        for (int64_t i = 0; i < length; ++i) {
          const int64_t at = row * length + i;
          // The first document has one token, the others a few.
          if (documents && (i == 1 || (i > 2 && unit(3, i) < 0.25))) from = i, ++number;
          token[at] = static_cast<int64_t>(unit(1, i) * static_cast<double>(vocabulary));
          target[at] = i == 0 || unit(2, i) < share
                           ? static_cast<int64_t>(unit(1, i + 1) * static_cast<double>(vocabulary))
                           : kNoTarget;
          document[at] = number;
          position[at] = i - from;
        }
      }
      batch.tokens = tokens;
      batch.targets = targets;
      batch.host_targets = target;
      if (!documents) return;
      batch.documents = ids;
      batch.positions = positions;
      batch.host_documents = document;
    }
    Tensor tokens, targets;
    train::MicroBatch batch;
  };

  std::string stored(const std::string& name) {
    const train::Stages* stages = trainer_.stages();
    return stages == nullptr ? name : train::stored_name(stages->outline(), name);
  }

  void fill() {
    c10::NoGradGuard no_grad;
    for (const ParallelParameter& p : trainer_.model().parameters()) {
      if (p.local.numel() == 0) continue;
      const std::string name = stored(p.name);
      const ParameterOutline* known = trainer_.outline().find_parameter(name);
      // Where a family begins with ones, values lie around one.
      const bool ones = p.global_shape.size() == 1 && known != nullptr &&
                        model_.initial_value(*known).kind == InitialValue::Kind::constant &&
                        model_.initial_value(*known).value == 1;
      Tensor(p.local).copy_(
          comparison::cut(values_of(name, p.global_shape, ones ? 1 : 0), p.region));
    }
    for (const auto& item : model_.module()->named_buffers())
      if (item.key().ends_with("score_correction_bias"))
        Tensor(item.value()).copy_(values_of(item.key(), item.value().sizes().vec(), 0) * 0.1);
    trainer_.tell_written({ValuesWritten::By::initialization, 0});
  }

  void describe() {
    for (const plan::AxisView& axis : plan::axes_of(trainer_.plan()))
      if (!axis.flattened && axis.size > 1) out_.seen.axes.push_back({axis.name, axis.group});
    out_.seen.scale = static_cast<double>(trainer_.accumulation());
    if (const auto& sharding = trainer_.plan().sharding)
      out_.approximate = sharding->gradient_tolerance.value_or(0);
    list_own();
    if (const auto& context = trainer_.model().context_parallel())
      for (const PositionRun& run : context->rows_of(request_.job.length, context->group()->rank()))
        for (int64_t i = 0; i < run.count; ++i)
          if (run.position + i < request_.job.length)
            out_.seen.positions.push_back(run.position + i);
  }

  // Under tensor parallelism, what the model of a plugin leaves whole on every rank: its outline
  // says whether gradients are summed.
  void list_own() {
    const plan::JobPlan& plan = trainer_.plan();
    if (job_.table("model").get_string("plugin").empty() || plan.tp.entries.empty()) return;
    const std::vector<std::string> summed =
        partial_gradient_parameters(plan.tp, trainer_.outline());
    for (const ParameterOutline& p : trainer_.outline().parameters) {
      if (tp_shard_dim(plan.tp, trainer_.outline(), p.name)) continue;
      out_.own.emplace_back(p.name, std::ranges::find(summed, p.name) != summed.end()
                                        ? "whole, its gradients summed over tp"
                                        : "whole, its gradients alike on the ranks of tp");
    }
  }

  // Right before the update, when they are clipped: by a factor that follows from the norm.
  void keep_gradients() {
    std::vector<Part>& kept = out_.gradients.emplace_back();
    for (const ParallelParameter& p : trainer_.model().parameters())
      if (p.grad.defined() && p.grad.numel() > 0)
        kept.push_back(
            {stored(p.name), p.global_shape, p.region, p.grad.detach().to(at::kDouble).clone()});
  }

  std::vector<Part> state() {
    std::vector<Part> out;
    for (const train::LocalTensor& one : train::local_state(trainer_))
      if (one.local.defined() && one.local.numel() > 0)
        out.push_back({(one.state.empty() ? "weight" : one.state) + " " + one.name, one.shape,
                       one.region, one.local.detach().clone()});
    return out;
  }

  const Request& request_;
  const Different& different_;
  Job job_;
  train::Model model_;
  Trainer trainer_;
  comparison::Watch watch_;
  std::optional<comparison::Operators> operators_;
  std::vector<std::unique_ptr<Batch>> batches_;  // of this step
  Captured out_;
  bool first_ = false;
};

}  // namespace

Captured run_job(const Request& request, const std::string& toml,
                 const std::vector<std::string>& sets, const std::shared_ptr<World>& world,
                 const Different& different) {
  return Running(request, toml, sets, world, different).run();
}

}  // namespace meshwright::prove
