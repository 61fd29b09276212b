// Samples of a plugin, with documents, targets without a loss and weights, train alike on every
// layout. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/pipeline_layouts.h"

#include <doctest/doctest.h>

#include "engine/data/tests/numbers.h"
#include "engine/train/run/batches.h"
#include "engine/train/step/tests/causal_loss.h"
#include "meshwright/nn/loss.h"

namespace plugin_data_test {

using namespace meshwright;
using at::Tensor;

namespace {

constexpr int64_t kTokens = 24, kSteps = 5;

data::Numbers numbers_of(bool weights) {
  return {.samples = 40, .vocabulary = 64, .seq_len = kTokens, .weights = weights};
}

std::unique_ptr<train::Batches> batches_of(Trainer& trainer, const data::DatasetConfig& config,
                                           int64_t workers, int64_t steps = kSteps) {
  const int64_t rows = trainer.local_batch(), ranks = trainer.data_parallel_size();
  return std::make_unique<train::Batches>(
      data::SampleStream(data::open_samples(config), data::Sampler(40, true, 9)),
      train::BatchOrder{.first = trainer.data_parallel_rank() * rows,
                        .stride = ranks * rows,
                        .count = steps * trainer.accumulation()},
      train::Batches::Settings{.rows = rows, .seq_len = config.seq_len, .workers = workers});
}

Curve steps_of(const Layout& layout, const data::Numbers& numbers, int64_t workers = 0) {
  Curve out;
  std::mutex mutex;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    rank.initialize();
    const auto batches = batches_of(rank.trainer, data::config_of(numbers), workers);
    Curve mine;
    for (int64_t step = 0; step < kSteps; ++step) {
      const int64_t first = step * rank.trainer.accumulation();
      batches->forget_before(first);
      const StepResult result = rank.trainer.step([&](int64_t micro, const Tensor& hidden) {
        return train::loss_of(rank.trainer, rank.net, batches->at(first + micro), hidden);
      });
      mine.losses.push_back(result.loss);
      mine.norms.push_back(result.grad_norm);
    }
    for (const ParallelParameter& p : rank.trainer.model().parameters())
      mine.parameters[p.name] = rank.trainer.model().full_tensor(p.name).clone();
    std::lock_guard lock(mutex);
    if (world->rank() == 0) out.losses = std::move(mine.losses), out.norms = std::move(mine.norms);
    out.parameters.merge(mine.parameters);
  });
  return out;
}

// One rank, without anything of the engine that reads, counts or packs: each document by itself,
// and its losses by hand.
Curve by_hand(const Layout& layout, const data::Numbers& numbers, int64_t batch) {
  Curve out;
  run_ranks(1, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    rank.initialize();
    const data::NumbersSource source(numbers);
    const data::Sampler sampler(40, true, 9);
    for (int64_t step = 0; step < kSteps; ++step) {
      StepResult result = rank.trainer.step([&](int64_t) {
        MicroBatchLoss loss{at::zeros({}), 0, 0};
        for (int64_t row = 0; row < batch; ++row) {
          std::vector<int64_t> tokens(kTokens), targets(kTokens);
          std::vector<int32_t> documents(kTokens);
          std::vector<float> weights(numbers.weights ? kTokens : 0);
          source.read(sampler.at(step * batch + row), {tokens, targets, documents, weights});
          for (size_t begin = 0, end = 0; begin < kTokens; begin = end) {
            while (end < kTokens && documents[end] == documents[begin]) ++end;
            const auto length = static_cast<int64_t>(end - begin);
            const Tensor ids = at::empty({1, length}, at::kLong);
            std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(begin), length,
                        ids.mutable_data_ptr<int64_t>());
            const Tensor logits = rank.net(ids)[0];
            for (size_t i = begin; i < end; ++i) {
              if (targets[i] == kNoTarget) continue;
              const double weight = numbers.weights ? weights[i] : 1;
              ++loss.count;
              *loss.weight += weight;
              loss.sum = loss.sum - weight * logits[static_cast<int64_t>(i - begin)].log_softmax(
                                                 0)[targets[i]];
            }
          }
        }
        return loss;
      });
      out.losses.push_back(result.loss);
      out.norms.push_back(result.grad_norm);
    }
    for (const ParallelParameter& p : rank.trainer.model().parameters())
      out.parameters[p.name] = rank.trainer.model().full_tensor(p.name).clone();
  });
  return out;
}

Layout with(Layout layout) {
  layout.sets.emplace_back("dataset.seq_len=24");
  return layout;
}

}  // namespace

TEST_CASE("plugin data: documents, targets and weights train as by hand, on every layout") {
  TestFolder folder("plugin_data");
  const std::string model = write_model(folder.path, kStaged);
  for (bool weights : {false, true}) {
    const data::Numbers numbers = numbers_of(weights);
    const Curve truth = by_hand(with(context_layout(model, kAlone)), numbers, kBatch);
    std::vector<Layout> layouts = {
        context_layout(model, kAlone),
        context_layout(model, {2, {}}),
        context_layout(model, {2, {kTp2, kSequence}}),
        context_layout(model, {2, {kCp2}}, {kRing}),
        context_layout(model, {2, {kCp2}}, {kGather}),
        context_layout(model, {4, {kCp2, kTp2}}, {kRing}),
        staged_layout(model, {2, {kPp2}}, {schedule("1F1B")}, 2),
        staged_layout(model, {4, {kPp2, kTp2, kSequence}}, {schedule("Interleaved1F1B")}, 2),
        staged_layout(model, {4, {kPp2, kCp2}}, {schedule("1F1B"), kRing}, 2)};
    layouts.push_back(context_layout(model, {2, {}}));
    layouts.back().sets.emplace_back("step_scheduler.local_batch_size=2");
    layouts.push_back(context_layout(model, {2, {}}));
    layouts.back().strategy = "ddp";
    for (const Layout& layout : layouts) {
      INFO(with(layout).text() << (weights ? ", weights" : ""));
      CHECK(strays(steps_of(with(layout), numbers), truth, 2) == "");
    }
  }
}

// Rotary embedding sees differences of positions alone: a model that has it trains alike wherever
// documents begin to count.
TEST_CASE("plugin data: positions begin at 0 in each document, and in each sample") {
  const std::vector<std::vector<int32_t>> documents = {
      {0, 0, 0, 1, 1, 2, 3, 3}, {3, 3, 3, 3, 3, 3, 3, 3}, {3, 5, 5, 5, 5, 6, 7, 8}};
  const std::vector<int64_t> expected = {0, 1, 2, 0, 1, 0, 0, 1,  //
                                         0, 1, 2, 3, 4, 5, 6, 7,  //
                                         0, 0, 1, 2, 3, 0, 0, 0};
  data::Numbers numbers{.samples = 3, .vocabulary = 64, .seq_len = 8, .weights = false};
  numbers.spoil = [&](int64_t sample, const SampleView& out) {
    std::ranges::copy(documents.at(static_cast<size_t>(sample)), out.documents.begin());
  };
  for (int64_t workers : {0, 2})
    for (bool told : {false, true}) {
      CAPTURE(workers);
      CAPTURE(told);
      train::Batches batches(
          {data::open_samples(data::config_of(numbers)), data::Sampler(3, false, 9)},
          train::BatchOrder{.first = 0, .stride = 3, .count = 1},
          train::Batches::Settings{.rows = 3,
                                   .seq_len = 8,
                                   .workers = workers,
                                   .padding = {.told = told, .multiple = 8}});
      const train::MicroBatch& batch = batches.at(0);
      REQUIRE((batch.positions.sizes() == at::IntArrayRef{3, 8}));
      REQUIRE(batch.positions.is_contiguous());
      const auto* positions = batch.positions.const_data_ptr<int64_t>();
      CHECK(std::vector<int64_t>(positions, positions + 24) == expected);
    }
  numbers.documents = false;
  numbers.spoil = {};
  train::Batches plain({data::open_samples(data::config_of(numbers)), data::Sampler(3, false, 9)},
                       train::BatchOrder{.first = 0, .stride = 3, .count = 1},
                       train::Batches::Settings{.rows = 3, .seq_len = 8});
  CHECK_FALSE(plain.at(0).positions.defined());
}

TEST_CASE("plugin data: threads that read ahead change no bit") {
  TestFolder folder("plugin_workers");
  const std::string model = write_model(folder.path, kStaged);
  const data::Numbers numbers = numbers_of(true);
  for (const Layout& layout : {with(context_layout(model, {2, {}})),
                               with(staged_layout(model, {2, {kPp2}}, {schedule("1F1B")}, 2))}) {
    INFO(layout.text());
    const Curve alone = steps_of(layout, numbers);
    for (int64_t workers : {1, 3}) CHECK(unlike(steps_of(layout, numbers, workers), alone) == "");
  }
}

TEST_CASE("plugin data: every sample of a step is read once, and none beyond the last step") {
  TestFolder folder("plugin_reads");
  const std::string model = write_model(folder.path, kStaged);
  for (int64_t workers : {0, 3})
    for (const Layout& layout :
         {with(context_layout(model, kAlone)),
          with(staged_layout(model, {2, {kPp2}}, {schedule("Interleaved1F1B")}, 2))}) {
      INFO(layout.text() << ", " << workers << " workers");
      const data::Numbers numbers = numbers_of(false);
      steps_of(layout, numbers, workers);
      // Both stages of a pipeline read.
      CHECK(*numbers.reads == kSteps * kBatch * layout.ranks);
    }
}

TEST_CASE("plugin data: reading ahead hides what a sample takes behind the step") {
  TestFolder folder("plugin_wait");
  const std::string model = write_model(folder.path, kStaged);
  const Layout layout = with(context_layout(model, kAlone));
  auto waited = [&](int64_t workers) {
    data::Numbers numbers = numbers_of(false);
    numbers.takes = std::chrono::milliseconds(4);
    double out = 0;
    run_ranks(1, [&](const std::shared_ptr<World>& world) {
      Rank rank(layout, world);
      const auto batches = batches_of(rank.trainer, data::config_of(numbers), workers, 4);
      for (int64_t step = 0; step < 4; ++step) {
        batches->forget_before(step);
        batches->at(step);
        // What a step takes.
        if (step == 0) batches->take_waited_ms();
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
      }
      out = batches->take_waited_ms();
    });
    return out;
  };
  CHECK(waited(0) >= 3 * kBatch * 4);  // three steps of twelve samples
  CHECK(waited(2) < 3 * kBatch * 4 / 2.0);
}

TEST_CASE("plugin data: a bad sample ends the step that would use it, with and without threads") {
  TestFolder folder("plugin_bad");
  const std::string model = write_model(folder.path, kStaged);
  const Layout layout = with(context_layout(model, kAlone));
  for (int64_t workers : {0, 2}) {
    data::Numbers numbers = numbers_of(false);
    const int64_t bad = data::Sampler(40, true, 9).at(2 * kBatch + 3);  // of the third step
    numbers.spoil = [bad](int64_t sample, const SampleView& out) {
      if (sample == bad) out.targets[2] = 64;
    };
    run_ranks(1, [&](const std::shared_ptr<World>& world) {
      Rank rank(layout, world);
      rank.initialize();
      const auto batches = batches_of(rank.trainer, data::config_of(numbers), workers);
      auto step = [&](int64_t n) {
        batches->forget_before(n);
        rank.trainer.step([&](int64_t, const Tensor& hidden) {
          return train::loss_of(rank.trainer, rank.net, batches->at(n), hidden);
        });
      };
      step(0);
      step(1);
      const std::string expected =
          "plugin numbers, sample " + std::to_string(bad) + ", position 2: the target is 64";
      CHECK_THROWS_WITH_AS(step(2), doctest::Contains(expected.c_str()), Error);
    });
  }
}

constexpr meshwright_option kPacking[] = {
    choice_option("packing", "\"bfd\"", "bfd|none", "How documents share a sample.")};

TEST_CASE(
    "plugin data: a model that sees across documents names the setting with which there is one a "
    "sample") {
  const auto module = std::make_shared<torch::nn::Module>();
  auto help = [&](const data::DatasetConfig& config) -> std::string {
    try {
      train::check_documents_reach(*module, "Net", config);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_module);
      return error.helps().at(1);
    }
    return "nothing";
  };
  CHECK(help({}) == "set dataset.packing = false");
  data::DatasetConfig config = data::config_of(numbers_of(false));
  CHECK(help(config) == "read data whose samples are one document each");
  config.plugin->options = Options(make_schema("dataset.rows", "rows", kPacking));
  CHECK(help(config) == "set dataset.rows.packing = \"none\"");
}

}  // namespace plugin_data_test
