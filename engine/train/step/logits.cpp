#include "engine/train/step/logits.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/train/step/routers.h"
#include "engine/train/step/stages.h"
#include "meshwright/data/dataset_kind.h"
#include "meshwright/nn/moe.h"
#include "meshwright/nn/stage.h"
#include "meshwright/parallel/context_parallel.h"
#include "meshwright/parallel/tensor_parallel.h"
#include "sdk/base/known_documents.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::train {

using at::Tensor;

namespace {

std::shared_ptr<const Sequence> whole_sequence(int64_t length, const Tensor& documents = {},
                                               const Tensor& positions = {},
                                               const Tensor& counts = {}) {
  auto out = std::make_shared<Sequence>();
  out->length = length;
  out->rows = {{0, length}};
  out->documents = documents;
  out->positions = positions;
  out->counts = counts;
  return out;
}

// [rows, length] bool, false for what pads; undefined where nothing does, or no router is.
Tensor counted_by_routers(const MicroBatch& batch, RunningModel& net) {
  const int64_t length = batch.length();
  if (std::all_of(batch.ends.begin(), batch.ends.end(),
                  [length](int64_t end) { return end == length; }) ||
      find_moe_blocks(*net.module()).empty())
    return {};
  Tensor out = at::zeros({batch.rows(), length}, at::kBool);
  for (int64_t row = 0; row < batch.rows(); ++row)
    out.select(0, row).narrow(0, 0, batch.ends[static_cast<size_t>(row)]).fill_(true);
  return out.to(batch.tokens.device());
}

// The current sequence with what pads this rank's rows.
std::shared_ptr<const Sequence> with_counts(const Tensor& counts) {
  auto out = std::make_shared<Sequence>(*current_sequence());
  out->counts = counts;
  return out;
}

// What of a micro-batch this rank reads: a token counts where a target of its document is there or
// follows, a position where it is not of what pads.
struct Counts {
  int64_t targets = 0, tokens = 0, positions = 0;
  double weight = 0;
};

Counts count(const MicroBatch& batch, const std::vector<PositionRun>& mine) {
  Counts out;
  const int64_t length = batch.length();
  const int32_t* documents = batch.host_documents;
  for (int64_t row = 0; row < batch.rows(); ++row) {
    bool learnt = false;
    for (int64_t i = length - 1; i >= 0; --i) {
      const int64_t at = row * length + i;
      const bool target = batch.host_targets == nullptr || batch.host_targets[at] != kNoTarget;
      const bool ends =
          documents != nullptr && i + 1 < length && documents[at] != documents[at + 1];
      learnt = target || (learnt && !ends);
      if (!std::any_of(mine.begin(), mine.end(), [i](const PositionRun& run) {
            return i >= run.position && i < run.position + run.count;
          }))
        continue;
      out.positions += batch.ends.empty() || i < batch.ends[static_cast<size_t>(row)] ? 1 : 0;
      out.tokens += learnt ? 1 : 0;
      if (!target) continue;
      ++out.targets;
      out.weight += batch.host_weights != nullptr ? batch.host_weights[at] : 1;
    }
  }
  return out;
}

}  // namespace

MicroBatchLoss loss_of(Trainer& trainer, RunningModel& net, const MicroBatch& batch,
                       const Tensor& hidden) {
  const StagePart stage = current_stage();
  const int64_t length = batch.length();
  std::shared_ptr<TensorParallel> tensor_parallel = trainer.model().tensor_parallel();
  Tensor targets = batch.targets, weights = batch.weights, logits;
  std::vector<PositionRun> mine = {{0, length}};
  const Tensor counts = counted_by_routers(batch, net);
  if (batch.documents.defined() && !batch.documents.is_cpu() && batch.host_documents != nullptr)
    detail::know_documents(batch.documents, batch.host_documents);
  if (const std::shared_ptr<ContextParallel>& context = trainer.model().context_parallel()) {
    auto scope = context->scope(length, batch.rows(), batch.documents, batch.positions);
    std::optional<SequenceScope> counting;
    if (counts.defined()) counting.emplace(with_counts(context->shard(counts, 1, false)));
    logits = net.forward(stage.first ? context->shard(batch.tokens, 1, 0) : hidden);
    targets = context->shard(targets, 1, kNoTarget);
    if (weights.defined()) weights = context->shard(weights, 1, 0);
    // All ranks of cp read the same samples.
    if (Routers& routers = routers_of(trainer); routers.needs_weight())
      routers.tell_weight(count(batch, mine).weight);
    mine = context->split(length).runs_of(context->group()->rank());
  } else if (batch.documents.defined() || counts.defined() ||
             (!stage.first && hidden.size(1) != length)) {
    // Of a sequence that tensor parallelism cut, a stage sees a part.
    SequenceScope scope(whole_sequence(length, batch.documents, batch.positions, counts));
    logits = net.forward(stage.first ? batch.tokens : hidden);
  } else {
    logits = net.forward(stage.first ? batch.tokens : hidden);
  }
  const Counts read = count(batch, mine);
  MicroBatchLoss out{logits, read.targets, read.weight, read.tokens, read.positions};
  if (!stage.last) return out;  // hidden states
  const VocabularyShard* shard =
      tensor_parallel && tensor_parallel->vocabulary() ? &*tensor_parallel->vocabulary() : nullptr;
  out.sum = net.loss_sum(logits, targets, weights, shard);
  return out;
}

namespace {

// Through all stages, and the last one's back to all.
Tensor logits_over_stages(Trainer& trainer, RunningModel& net, const Tensor& ids) {
  c10::NoGradGuard no_grad;
  Stages& stages = *trainer.stages();
  std::shared_ptr<TensorParallel> tensor_parallel = trainer.model().tensor_parallel();
  const int64_t length = ids.size(1),
                ranks = tensor_parallel ? tensor_parallel->group()->size() : 1,
                padded = (length + ranks - 1) / ranks * ranks;
  const Tensor input = at::constant_pad_nd(ids.to(trainer.world().device()), {0, padded - length});
  const bool cut = plan::cuts_sequence(trainer.plan().tp);
  Tensor last = stages.forward(
      trainer.model(), {ids.size(0), cut ? padded / ranks : padded, trainer.outline().hidden_size},
      [&](int64_t, int64_t, const Tensor& hidden) {
        SequenceScope scope(whole_sequence(padded));
        return net.forward(current_stage().first ? input : hidden);
      });
  if (!last.defined())
    last = at::empty({ids.size(0), 1, trainer.outline().vocab_size},
                     input.options().dtype(at::kFloat));
  else
    last = whole_logits(last, tensor_parallel ? tensor_parallel->vocabulary() : std::nullopt)
               .narrow(1, length - 1, 1)
               .to(at::kFloat)
               .contiguous();
  stages.group()->broadcast(last, stages.last_rank()).wait();
  return last;
}

Tensor logits_here(Trainer& trainer, RunningModel& net, const Tensor& ids) {
  if (trainer.stages() != nullptr) return logits_over_stages(trainer, net, ids);
  Tensor input = ids.to(trainer.world().device());
  std::shared_ptr<TensorParallel> tensor_parallel = trainer.model().tensor_parallel();
  // Every rank of cp computes the whole text.
  auto run = [&](const Tensor& whole) {
    if (!trainer.model().context_parallel()) return net.forward(whole);
    SequenceScope scope(whole_sequence(whole.size(1)));
    return net.forward(whole);
  };
  if (!tensor_parallel) return run(input);
  // Sequence parallelism cuts the text evenly; what stands behind it changes nothing before it.
  int64_t length = ids.size(1), ranks = tensor_parallel->group()->size(),
          more = (ranks - length % ranks) % ranks;
  if (more > 0) input = at::constant_pad_nd(input, {0, more});
  return whole_logits(run(input), tensor_parallel->vocabulary()).narrow(1, 0, length);
}

}  // namespace

Tensor logits_of(Trainer& trainer, RunningModel& net, const Tensor& ids) {
  Tensor out = logits_here(trainer, net, ids);
  const int64_t vocabulary = trainer.outline().vocab_size;
  if (out.dim() != 3 || out.size(0) != ids.size(0) || out.size(2) != vocabulary)
    throw Error(ErrorCode::plugin_nonconforming,
                "forward() of " + trainer.outline().architecture + " gave " +
                    report::shape_text(out.sizes().vec()) + " for " +
                    report::shape_text(ids.sizes().vec()) +
                    " tokens, but a text needs an output for each of the " +
                    std::to_string(vocabulary) + " tokens of the vocabulary")
        .help("let generates() say no where the output does not predict the next token");
  return out;
}

std::string whole_text_notice(Trainer& trainer) {
  const std::shared_ptr<ContextParallel> context = trainer.model().context_parallel();
  if (!context) return "";
  return "a text is not divided over the ranks of cp: each of the " +
         std::to_string(context->group()->size()) + " computes all of it";
}

}  // namespace meshwright::train
