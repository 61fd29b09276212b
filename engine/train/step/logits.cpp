#include "engine/train/step/logits.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>

#include "engine/models/running/causal_lm.h"
#include "engine/train/step/stages.h"
#include "engine/train/step/step_monitor.h"
#include "meshwright/data/dataset_kind.h"
#include "meshwright/error.h"
#include "meshwright/nn/stage.h"
#include "meshwright/parallel/context_parallel.h"
#include "meshwright/parallel/tensor_parallel.h"
#include "sdk/base/known_documents.h"
#include "sdk/base/terminal/report.h"

namespace meshwright {

double ExpertLoad::imbalance() const {
  int64_t sum = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  if (sum == 0) return 1;
  return static_cast<double>(*std::max_element(tokens.begin(), tokens.end())) *
         static_cast<double>(tokens.size()) / static_cast<double>(sum);
}

namespace train {

Routers::Routers(torch::nn::Module& model, bool route_again, bool in_turns) {
  for (auto& [name, block] : find_moe_blocks(model)) {
    const MoeConfig& config = block->config();
    blocks_.push_back({name, block, config.n_routed_experts, config.n_activated_experts});
    block->gate()->route_again = route_again;
    block->gate()->in_turns = in_turns;
    const std::shared_ptr<LoadBalance>& balance = block->gate()->load_balance;
    if (balance && std::find(balances_.begin(), balances_.end(), balance) == balances_.end())
      balances_.push_back(balance);
  }
}

void Routers::refuse_balance_over_stages() const {
  for (const auto& balance : balances_)
    if (balance->form() == LoadBalance::Form::whole_model)
      throw Error(ErrorCode::not_in_release,
                  "the auxiliary loss of this model is one of all its routers together, which the "
                  "stages of a pipeline do not yet add up")
          .key("distributed.pp_size")
          .help(
              "set \"router_aux_loss_coef\": 0 or \"output_router_logits\": false in the model's "
              "config.json")
          .help("set distributed.pp_size = 1");
}

void Routers::forget_others(torch::nn::Module& model) {
  const auto left = find_moe_blocks(model);
  std::erase_if(balances_, [&](const auto& balance) {
    return std::ranges::none_of(
        left, [&](const auto& item) { return item.second->gate()->load_balance == balance; });
  });
  for (Block& block : blocks_)
    if (std::ranges::none_of(left, [&](const auto& item) { return item.first == block.name; }))
      block.module = nullptr;
}

void Routers::begin_step() {
  told_.reset();  // of an evaluation, say
  for (Block& block : blocks_)
    if (block.module != nullptr) block.module->gate()->reset_load();
}

void Routers::before_backward(const Weight& weight, double assumed) {
  if (balances_.empty()) return;
  double count = weight.mine;
  if (context_ && weight.all) {
    count = *weight.all;
  } else if (context_) {
    const auto block =
        std::ranges::find_if(blocks_, [](const Block& b) { return b.module != nullptr; });
    const at::Device device = block->module->gate()->parameters().front().device();
    at::Tensor sum = at::full({1}, count, at::TensorOptions().dtype(at::kDouble).device(device));
    context_->all_reduce(sum, ReduceOp::sum, /*control=*/true).wait();
    count = sum.item<double>();
  }
  for (const auto& balance : balances_) balance->set_scale(count / assumed);
}

at::Tensor Routers::reported_loss() const {
  at::Tensor out;
  for (const auto& balance : balances_) {
    if (balance->form() != LoadBalance::Form::whole_model) continue;
    at::Tensor value = balance->value();
    if (value.defined()) out = out.defined() ? out + value : value;
  }
  return out;
}

at::Tensor Routers::load() const {
  at::TensorOptions options = at::TensorOptions().dtype(at::kLong);
  for (const Block& block : blocks_)
    if (block.module != nullptr) options = block.module->gate()->load().options();
  std::vector<at::Tensor> out;
  for (const Block& block : blocks_)
    out.push_back(block.module != nullptr ? block.module->gate()->load()
                                          : at::zeros({block.experts}, options));
  return out.empty() ? at::Tensor() : at::cat(out);
}

std::vector<ExpertLoad> Routers::read_load(const double* sums) const {
  std::vector<ExpertLoad> out;
  for (const Block& block : blocks_) {
    out.push_back({block.name, std::vector<int64_t>(sums, sums + block.experts), block.active});
    sums += block.experts;
  }
  return out;
}

void Routers::update_biases(const std::vector<ExpertLoad>& load, const at::Tensor& sums) {
  int64_t begin = 0;
  for (size_t i = 0; i < blocks_.size(); begin += blocks_[i++].experts) {
    if (blocks_[i].module == nullptr) continue;
    Router& gate = blocks_[i].module->gate();
    int64_t tokens = std::accumulate(load[i].tokens.begin(), load[i].tokens.end(), int64_t{0});
    if (gate->updates_bias() && gate->weight.requires_grad() && tokens > 0)
      gate->update_bias(sums.narrow(0, begin, blocks_[i].experts));
  }
}

using at::Tensor;

namespace {

// Rows that follow each other from `position` on, as what is kept from before goes on.
std::shared_ptr<Sequence> rows_from(int64_t position, int64_t rows) {
  auto out = std::make_shared<Sequence>();
  out->length = position + rows;
  out->rows = {{position, rows}};
  return out;
}
// From a position of its own in each sample.
std::shared_ptr<Sequence> rows_from(const std::vector<int64_t>& positions, int64_t rows,
                                    const at::Device& device) {
  if (positions.empty()) return rows_from(0, rows);
  std::shared_ptr<Sequence> out = rows_from(std::ranges::max(positions), rows);
  if (std::ranges::min(positions) < std::ranges::max(positions))
    out->positions =
        at::tensor(positions, at::kLong).unsqueeze(1).add(at::arange(rows, at::kLong)).to(device);
  return out;
}

std::shared_ptr<const Sequence> whole_sequence(int64_t length, const Tensor& documents = {},
                                               const Tensor& positions = {},
                                               const Tensor& counts = {}) {
  std::shared_ptr<Sequence> out = rows_from(0, length);
  out->documents = documents;
  out->positions = positions;
  out->counts = counts;
  return out;
}

// [rows, length] bool, false for what pads; undefined where nothing does, or no router is.
Tensor counted_by_routers(const MicroBatch& batch, RunningModel& net) {
  const int64_t length = batch.length();
  if (std::ranges::all_of(batch.ends, [length](int64_t end) { return end == length; }) ||
      find_moe_blocks(*net.module()).empty())
    return {};
  Tensor out = at::zeros({batch.rows(), length}, at::kBool);
  for (int64_t row = 0; row < batch.rows(); ++row)
    out.select(0, row).narrow(0, 0, batch.ends[static_cast<size_t>(row)]).fill_(true);
  return out.to(batch.tokens.device());
}

// What of a micro-batch this rank reads: a token counts where a target of its document is there or
// follows, a position where it is not of what pads.
struct Counts {
  int64_t targets = 0, tokens = 0, positions = 0;
  double weight = 0;
};

// `by_source`: where it is told, what each source has of it.
Counts count(const MicroBatch& batch, const std::vector<PositionRun>& mine,
             SourceLosses::Part* by_source = nullptr) {
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
      if (std::ranges::none_of(mine, [i](const PositionRun& run) {
            return i >= run.position && i < run.position + run.count;
          }))
        continue;
      out.positions += batch.ends.empty() || i < batch.ends[static_cast<size_t>(row)] ? 1 : 0;
      out.tokens += learnt ? 1 : 0;
      if (!target) continue;
      const double weight = batch.host_weights != nullptr ? batch.host_weights[at] : 1;
      ++out.targets;
      out.weight += weight;
      if (by_source == nullptr) continue;
      const auto source = static_cast<size_t>(batch.sources[static_cast<size_t>(row)]);
      ++by_source->targets[source];
      by_source->weights[source] += weight;
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
    if (counts.defined()) {
      auto padded = std::make_shared<Sequence>(*current_sequence());
      padded->counts = context->shard(counts, 1, false);
      counting.emplace(std::move(padded));
    }
    logits = net.forward(stage.first ? context->shard(batch.tokens, 1, 0) : hidden);
    targets = context->shard(targets, 1, kNoTarget);
    if (weights.defined()) weights = context->shard(weights, 1, 0);
    // All ranks of cp read the same samples.
    if (Routers& routers = routers_of(trainer); routers.needs_weight())
      routers.tell_weight(count(batch, mine).weight);
    mine = context->rows_of(length, context->group()->rank());
  } else {
    // Of a sequence that tensor parallelism cut, a stage sees a part.
    std::optional<SequenceScope> scope;
    if (batch.documents.defined() || counts.defined() || (!stage.first && hidden.size(1) != length))
      scope.emplace(whole_sequence(length, batch.documents, batch.positions, counts));
    logits = net.forward(stage.first ? batch.tokens : hidden);
  }
  SourceLosses& sources = monitor_of(trainer).sources();
  SourceLosses::Part by_source;
  const bool tells = !batch.sources.empty() && stage.last;
  if (tells) {
    by_source.targets.resize(static_cast<size_t>(sources.sources()));
    by_source.weights.resize(static_cast<size_t>(sources.sources()));
  }
  const Counts read = count(batch, mine, tells ? &by_source : nullptr);
  MicroBatchLoss out{logits, read.targets, read.weight, read.tokens, read.positions};
  if (!stage.last) return out;  // hidden states
  const VocabularyShard* shard =
      tensor_parallel && tensor_parallel->vocabulary() ? &*tensor_parallel->vocabulary() : nullptr;
  out.sum = tells ? loss_by_source(sources, net, batch, logits, targets, weights, shard,
                                   std::move(by_source))
                  : net.loss_sum(logits, targets, weights, shard);
  return out;
}

namespace {

// Through all stages, and the last one's back to all.
Tensor logits_over_stages(Trainer& trainer, RunningModel& net, const Tensor& ids,
                          const std::vector<int64_t>& positions) {
  c10::NoGradGuard no_grad;
  Stages& stages = *trainer.stages();
  std::shared_ptr<TensorParallel> tensor_parallel = trainer.model().tensor_parallel();
  const int64_t length = ids.size(1),
                ranks = tensor_parallel ? tensor_parallel->group()->size() : 1,
                padded = (length + ranks - 1) / ranks * ranks;
  const Tensor input = at::constant_pad_nd(ids.to(trainer.world().device()), {0, padded - length});
  const std::shared_ptr<const Sequence> sequence = rows_from(positions, padded, input.device());
  const bool cut = plan::cuts_sequence(trainer.plan().tp);
  Tensor last = stages.forward(
      trainer.model(), {ids.size(0), cut ? padded / ranks : padded, trainer.outline().hidden_size},
      [&](int64_t, int64_t, const Tensor& hidden) {
        SequenceScope scope(sequence);
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

Tensor logits_here(Trainer& trainer, RunningModel& net, const Tensor& ids,
                   const std::vector<int64_t>& positions, bool last_alone) {
  if (trainer.stages() != nullptr) return logits_over_stages(trainer, net, ids, positions);
  Tensor input = ids.to(trainer.world().device());
  std::shared_ptr<TensorParallel> tensor_parallel = trainer.model().tensor_parallel();
  // Every rank of cp computes the whole text.
  auto run = [&](const Tensor& whole) {
    std::optional<SequenceScope> scope;
    if (trainer.model().context_parallel() ||
        std::ranges::any_of(positions, [](int64_t position) { return position > 0; }))
      scope.emplace(rows_from(positions, whole.size(1), whole.device()));
    std::optional<modules::LastRowScope> last;
    // Under tensor parallelism rows stand behind the last one, and each rank may hold some.
    if (last_alone && !tensor_parallel) last.emplace();
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

Tensor logits_of(Trainer& trainer, RunningModel& net, const Tensor& ids,
                 const std::vector<int64_t>& positions, bool last_alone) {
  Tensor out = logits_here(trainer, net, ids, positions, last_alone);
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

}  // namespace train

}  // namespace meshwright
