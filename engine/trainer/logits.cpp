#include "engine/trainer/logits.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <memory>
#include <tuple>
#include <utility>

#include "engine/trainer/stages.h"
#include "meshwright/nn/stage.h"
#include "meshwright/parallel/context_parallel.h"
#include "meshwright/parallel/tensor_parallel.h"

namespace meshwright::train {

using at::Tensor;

namespace {

// [batch, length] each: which document a token belongs to, int32, and its place in that, int64.
struct Documents {
  Tensor numbers, positions;
};

// The token that ends a document is its last one.
Documents documents_of(const Tensor& ids, int64_t end) {
  const int64_t length = ids.size(1);
  Tensor ends = ids.eq(end).to(at::kLong), before = ends.cumsum(1) - ends;
  Tensor place = at::arange(length, ids.options()).expand_as(ids);
  Tensor begins = at::constant_pad_nd(ends.narrow(1, 0, length - 1), {1, 0}, 1);
  Tensor first = std::get<0>((place * begins).cummax(1));
  return {before.to(at::kInt), place - first};
}

std::shared_ptr<const Sequence> whole_sequence(int64_t length, const Documents& documents = {}) {
  auto out = std::make_shared<Sequence>();
  out->length = length;
  out->rows = {{0, length}};
  out->documents = documents.numbers;
  out->positions = documents.positions;
  return out;
}

}  // namespace

MicroBatchLoss loss_of(Trainer& trainer, modules::CausalLM& net, const Tensor& ids,
                       const Tensor& hidden, std::optional<int64_t> document_end) {
  const StagePart stage = current_stage();
  int64_t length = ids.size(1) - 1, count = ids.size(0) * length;
  std::shared_ptr<TensorParallel> tensor_parallel = trainer.model().tensor_parallel();
  Tensor input = ids.narrow(1, 0, length), targets = ids.narrow(1, 1, length), logits;
  Documents documents;
  if (document_end) {
    documents = documents_of(input, *document_end);
    targets = targets.masked_fill(input.eq(*document_end), -100);
  }
  if (const std::shared_ptr<ContextParallel>& context = trainer.model().context_parallel()) {
    auto scope = context->scope(length, ids.size(0), documents.numbers, documents.positions);
    logits = net(stage.first ? context->shard(input, 1, 0) : hidden);
    targets = context->shard(targets, 1, -100);
    count = ids.size(0) * context->split(length).tokens_of(context->group()->rank());
  } else if (document_end || (!stage.first && hidden.size(1) != length)) {
    // Of a sequence that tensor parallelism cut, a stage sees a part.
    SequenceScope scope(whole_sequence(length, documents));
    logits = net(stage.first ? input : hidden);
  } else {
    logits = net(stage.first ? input : hidden);
  }
  if (document_end) count = targets.ne(-100).sum().item<int64_t>();
  if (!stage.last) return {logits, count};  // hidden states
  const VocabularyShard* shard =
      tensor_parallel && tensor_parallel->vocabulary() ? &*tensor_parallel->vocabulary() : nullptr;
  return {cross_entropy_sum(logits, targets, shard), count};
}

namespace {

// Through all stages, and the last one's back to all.
Tensor logits_over_stages(Trainer& trainer, modules::CausalLM& net, const Tensor& ids) {
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
        return net(current_stage().first ? input : hidden);
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

}  // namespace

Tensor logits_of(Trainer& trainer, modules::CausalLM& net, const Tensor& ids) {
  if (trainer.stages() != nullptr) return logits_over_stages(trainer, net, ids);
  Tensor input = ids.to(trainer.world().device());
  std::shared_ptr<TensorParallel> tensor_parallel = trainer.model().tensor_parallel();
  // Every rank of cp computes the whole text.
  auto run = [&](const Tensor& whole) {
    if (!trainer.model().context_parallel()) return net(whole);
    SequenceScope scope(whole_sequence(whole.size(1)));
    return net(whole);
  };
  if (!tensor_parallel) return run(input);
  // Sequence parallelism cuts the text evenly; what stands behind it changes nothing before it.
  int64_t length = ids.size(1), ranks = tensor_parallel->group()->size(),
          more = (ranks - length % ranks) % ranks;
  if (more > 0) input = at::constant_pad_nd(input, {0, more});
  return whole_logits(run(input), tensor_parallel->vocabulary()).narrow(1, 0, length);
}

std::string whole_text_notice(Trainer& trainer) {
  const std::shared_ptr<ContextParallel> context = trainer.model().context_parallel();
  if (!context) return "";
  return "a text is not divided over the ranks of cp: each of the " +
         std::to_string(context->group()->size()) + " computes all of it";
}

}  // namespace meshwright::train
