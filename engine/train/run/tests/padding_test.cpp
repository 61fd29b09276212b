// What pads samples: no router counts it, and what pads all samples of a micro-batch is not
// computed. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/pipeline_layouts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "engine/data/tests/numbers.h"
#include "engine/train/run/batches.h"
#include "engine/train/step/stages.h"
#include "engine/train/step/tests/causal_loss.h"
#include "sdk/comm/tests/shared_memory_switch.h"

namespace padding_test {

using namespace meshwright;
using at::Tensor;

namespace {

constexpr int64_t kTokens = 24, kSteps = 3, kSamples = 40;

// The first step's samples are shorter than those of the others.
data::Sampler sampler() { return {kSamples, false, 9}; }

int64_t length_of(int64_t sample) { return sample < kBatch ? 3 + sample % 5 : 3 + sample % 9; }

// Of the samples of a step.
int64_t real_tokens(int64_t step) {
  int64_t out = 0;
  for (int64_t i = 0; i < kBatch; ++i) out += length_of(sampler().at(step * kBatch + i));
  return out;
}

// A document a sample, padded with `filler`: a document of its own, if documents are told.
data::Numbers numbers_of(bool documents, int64_t filler = 0) {
  return {.samples = kSamples,
          .vocabulary = 64,
          .seq_len = kTokens,
          .documents = documents,
          .spoil = [filler](int64_t sample, const SampleView& out) {
            for (size_t i = 0; i < out.tokens.size(); ++i) {
              const bool pads = i >= static_cast<size_t>(length_of(sample));
              if (pads) out.tokens[i] = filler;
              out.targets[i] = pads ? kNoTarget : (out.tokens[i] * 5 + 3) % 64;
              if (!out.documents.empty()) out.documents[i] = pads ? 1 : 0;
            }
          }};
}

struct Seen {
  Curve curve;
  std::vector<std::vector<int64_t>> loads;  // of every step, all blocks
  std::vector<int64_t> widest;              // micro-batch of every step, on any rank
};

// `evaluated`: the samples of the last step are evaluated behind it, and their loss is the last of
// the curve.
Seen steps_of(Layout layout, const data::Numbers& numbers, bool cut = true,
              bool evaluated = false) {
  layout.sets.push_back("dataset.seq_len=" + std::to_string(kTokens));
  Seen out;
  out.widest.assign(kSteps, 0);
  std::mutex mutex;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    rank.initialize();
    modules::RunningCausalLM running(rank.net);
    const data::DatasetConfig config = data::config_of(numbers);
    train::Padding padding =
        train::padding_of(rank.trainer, running, config, rank.trainer.accumulation());
    CHECK(padding.told);
    if (!cut) padding.multiple = 0;
    const int64_t rows = rank.trainer.local_batch(), ranks = rank.trainer.data_parallel_size();
    train::Batches batches(
        {data::open_samples(config), sampler()},
        train::BatchOrder{.first = rank.trainer.data_parallel_rank() * rows,
                          .stride = ranks * rows,
                          .count = kSteps * rank.trainer.accumulation()},
        train::Batches::Settings{.rows = rows, .seq_len = kTokens, .padding = padding});
    Seen mine;
    mine.widest.assign(kSteps, 0);
    for (int64_t step = 0; step < kSteps; ++step) {
      const int64_t first = step * rank.trainer.accumulation();
      batches.forget_before(first);
      if (train::Stages* stages = rank.trainer.stages(); stages != nullptr)
        stages->set_length(batches.at(first).length());
      const Trainer::StageForward forward = [&](int64_t micro, const Tensor& hidden) {
        const train::MicroBatch& batch = batches.at(first + micro);
        int64_t& widest = mine.widest[static_cast<size_t>(step)];
        widest = std::max(widest, batch.length());
        return train::loss_of(rank.trainer, rank.net, batch, hidden);
      };
      const StepResult result = rank.trainer.step(forward);
      CHECK(result.positions == real_tokens(step));
      CHECK(result.tokens == result.positions);
      for (const ExpertLoad& load : result.experts) {
        CHECK(std::accumulate(load.tokens.begin(), load.tokens.end(), int64_t{0}) ==
              result.positions * load.active);
        mine.loads.push_back(load.tokens);
      }
      mine.curve.losses.push_back(result.loss);
      mine.curve.norms.push_back(result.grad_norm);
      if (evaluated && step + 1 == kSteps)
        mine.curve.losses.push_back(rank.trainer.evaluate(rank.trainer.accumulation(), forward));
    }
    for (const ParallelParameter& p : rank.trainer.model().parameters())
      mine.curve.parameters[p.name] = rank.trainer.model().full_tensor(p.name).clone();
    std::lock_guard lock(mutex);
    if (world->rank() == 0) {
      out.curve.losses = std::move(mine.curve.losses);
      out.curve.norms = std::move(mine.curve.norms);
      out.loads = std::move(mine.loads);
    }
    for (size_t step = 0; step < mine.widest.size(); ++step)
      out.widest[step] = std::max(out.widest[step], mine.widest[step]);
    out.curve.parameters.merge(mine.curve.parameters);
  });
  return out;
}

}  // namespace

TEST_CASE("what pads all samples of a micro-batch is not computed, and nothing else changes") {
  TestFolder folder("padding_cut");
  const std::string model = write_model(folder.path, kStaged);
  const data::Numbers numbers = numbers_of(false);
  using Widths = std::vector<int64_t>;
  const Seen whole = steps_of(context_layout(model, kAlone), numbers, /*cut=*/false,
                              /*evaluated=*/true);
  CHECK(whole.widest == Widths(kSteps, kTokens));
  const Widths cut = {8, 16, 16};  // the longest have 7, and 11
  for (const Layout& layout : {context_layout(model, kAlone), context_layout(model, {2, {}}),
                               context_layout(model, {2, {kCp2}}, {kRing}),
                               context_layout(model, {4, {kCp2, kTp2}}, {kRing}),
                               context_layout(model, {2, {kTp2, kSequence}})}) {
    INFO(layout.text());
    const Seen found = steps_of(layout, numbers, /*cut=*/true, /*evaluated=*/true);
    CHECK(found.widest == cut);
    CHECK(strays(found.curve, whole.curve, 2) == "");
  }
  // Stages send each other hidden states of one size in a step, and of another in the next.
  for (const Layout& layout :
       {staged_layout(model, {2, {kPp2}}, {schedule("1F1B")}, 2),
        // Two runs a step.
        staged_layout(model, {2, {kPp2}}, {"distributed.pipeline.pp_batch_size=6"}, 2),
        staged_layout(model, {2, {kPp2}}, {schedule("ZBVZeroBubble")}, 2),
        staged_layout(model, {4, {kPp2, kTp2, kSequence}}, {schedule("Interleaved1F1B")}, 2),
        staged_layout(model, {4, {kPp2, kCp2}}, {schedule("1F1B"), kRing}, 2)}) {
    INFO(layout.text());
    const Seen found = steps_of(layout, numbers, /*cut=*/true, /*evaluated=*/true);
    CHECK(found.widest == cut);
    CHECK(strays(found.curve, whole.curve, 2) == "");
  }
  {
    const meshwright::testing::SharedMemory sockets(false);
    const Seen found = steps_of(staged_layout(model, {2, {kPp2}}, {schedule("1F1B")}, 2), numbers,
                                /*cut=*/true, /*evaluated=*/true);
    CHECK(found.widest == cut);
    CHECK(strays(found.curve, whole.curve, 2) == "");
  }
  // Packs stay what they are.
  const Seen packed = steps_of(context_layout(model, kAlone), numbers_of(true), /*cut=*/true,
                               /*evaluated=*/true);
  CHECK(packed.widest == Widths(kSteps, kTokens));
  CHECK(strays(packed.curve, whole.curve, 2) == "");
}

TEST_CASE("micro-batches of one call are of one length") {
  const data::DatasetConfig config = data::config_of(numbers_of(false));
  // One row each, unshuffled: 3 + i % 5 tokens, and 3 + i % 9 from the twelfth on.
  train::Batches batches(
      {data::open_samples(config), sampler()},
      train::BatchOrder{.first = 0, .stride = 1, .count = 20},
      train::Batches::Settings{
          .rows = 1, .seq_len = kTokens, .padding = {.told = true, .multiple = 2, .together = 6}});
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 20; ++i) {
    batches.forget_before(i);
    lengths.push_back(batches.at(i).length());
    CHECK(batches.at(i).ends == std::vector<int64_t>{length_of(i)});
  }
  // Of 3 to 7, 3 to 7, 6 to 11 and the last two of 3 and 4 tokens.
  CHECK(lengths ==
        std::vector<int64_t>{8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 12, 12, 12, 12, 12, 12, 4, 4});
}

TEST_CASE("no router counts what pads samples, as documents or not") {
  TestFolder folder("padding_routers");
  const std::string balanced = write_model(folder.path, kBalanced);
  for (bool documents : {false, true}) {
    CAPTURE(documents);
    const Layout layout = context_layout(balanced, kAlone);
    const Seen truth = steps_of(layout, numbers_of(documents));
    // Other tokens there, which other experts would get: no load, no auxiliary loss changes.
    const Seen other = steps_of(layout, numbers_of(documents, 7));
    CHECK(other.loads == truth.loads);
    CHECK(strays(other.curve, truth.curve) == "");
    CHECK(strays(steps_of(layout, numbers_of(documents), /*cut=*/false).curve, truth.curve, 2) ==
          "");
    CHECK(strays(
              steps_of(context_layout(balanced, {2, {kCp2}}, {kRing}), numbers_of(documents)).curve,
              truth.curve, 2) == "");
  }
  // Ranks that share experts bring as many tokens as their own samples have.
  const std::string model = write_model(folder.path, kMixtral);
  const Seen alone = steps_of(calm_layout(model, kAlone), numbers_of(false));
  for (const char* dispatcher : {"all_to_all", "all_gather"}) {
    CAPTURE(dispatcher);
    Layout layout = calm_layout(model, {2, {kEp2}});
    layout.sets.push_back("step_scheduler.local_batch_size=1");
    layout.sets.push_back("distributed.moe.dispatcher=\"" + std::string(dispatcher) + "\"");
    CHECK(strays(steps_of(layout, numbers_of(false)).curve, alone.curve, 2) == "");
  }
}

}  // namespace padding_test
