// The loss of a micro-batch by the sources of its rows: of the engine's own loss, of one that a
// model brings, and of one that is no sum over targets.
#include "engine/train/step/source_losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <doctest/doctest.h>

#include <cmath>

namespace source_losses_test {

using namespace meshwright;
using at::Tensor;
using train::SourceLosses;

namespace {

constexpr int64_t kRows = 5, kLength = 6, kVocabulary = 11, kSources = 3;

enum class Loss { own, doubled, together };

class Running final : public RunningModel {
 public:
  explicit Running(Loss loss) : loss_(loss) {}
  std::shared_ptr<torch::nn::Module> module() override { return nullptr; }
  Tensor forward(const Tensor& input) override { return input; }
  Tensor loss_sum(const Tensor& output, const Tensor& targets, const Tensor& weights,
                  const VocabularyShard* shard) override {
    ++calls;
    const Tensor sum = RunningModel::loss_sum(output, targets, weights, shard);
    return loss_ == Loss::own ? sum : loss_ == Loss::doubled ? sum * 2 : sum * sum;
  }
  int64_t calls = 0;

 private:
  Loss loss_;
};

struct Measured {
  Tensor loss, sums;
  SourceLosses losses;
};

// As a step of one micro-batch of one rank.
Measured measure(RunningModel& net, const train::MicroBatch& batch, const Tensor& logits,
                 const Tensor& weights, const Tensor& more = {}) {
  Measured out;
  out.losses.open(kSources);
  SourceLosses::Part counted{{}, std::vector<double>(kSources), std::vector<double>(kSources)};
  for (int64_t row = 0; row < batch.rows(); ++row) {
    const auto source = static_cast<size_t>(batch.sources[static_cast<size_t>(row)]);
    const Tensor there = batch.targets[row].ne(-100);
    counted.targets[source] += there.sum().item<double>();
    counted.weights[source] +=
        (weights.defined() ? weights[row] * there : there).sum().item<double>();
  }
  out.loss = train::loss_by_source(out.losses, net, batch, logits, batch.targets, weights, nullptr,
                                   counted);
  out.losses.add_told(more);
  std::vector<double> sent(static_cast<size_t>(out.losses.slots()));
  out.losses.write(sent.data());
  for (int64_t i = 0; i < kSources; ++i)
    sent[static_cast<size_t>(i)] = out.losses.sums()[i].item<double>();
  out.losses.read(sent.data());
  return out;
}

train::MicroBatch batch_of(std::vector<int64_t> sources) {
  train::MicroBatch out;
  out.tokens = at::randint(kVocabulary, {kRows, kLength}, at::kLong);
  out.targets = at::randint(kVocabulary, {kRows, kLength}, at::kLong);
  out.targets[1].narrow(0, 0, 4).fill_(-100);
  out.sources = std::move(sources);
  return out;
}

}  // namespace

TEST_CASE("sources' losses: each is that of its rows alone, whatever the model's loss is") {
  for (const Loss kind : {Loss::own, Loss::doubled})
    for (const bool weighed : {false, true})
      for (const std::vector<int64_t>& rows :
           {std::vector<int64_t>{0, 2, 0, 2, 2}, std::vector<int64_t>{1, 1, 1, 1, 1}}) {
        CAPTURE(static_cast<int>(kind));
        CAPTURE(weighed);
        Running net(kind);
        const train::MicroBatch batch = batch_of(rows);
        const Tensor logits = at::randn({kRows, kLength, kVocabulary}).requires_grad_(true),
                     weights = weighed ? at::rand({kRows, kLength}) : Tensor();
        const Measured found = measure(net, batch, logits, weights);
        const bool several = rows.front() != rows.back();
        CHECK(net.calls == (several && kind == Loss::doubled ? 3 : 1));
        CHECK(found.loss.requires_grad());
        double sum = 0, weight = 0;
        for (int64_t source = 0; source < kSources; ++source) {
          double expected = 0, targets = 0;
          for (int64_t row = 0; row < kRows; ++row) {
            if (rows[static_cast<size_t>(row)] != source) continue;
            expected += net.loss_sum(logits[row], batch.targets[row],
                                     weighed ? weights[row] : Tensor(), nullptr)
                            .item<double>();
            targets += row == 1 ? 2 : 6;
          }
          const train::SourceLoss& one = found.losses.found()[static_cast<size_t>(source)];
          CHECK(one.sum == doctest::Approx(expected).epsilon(1e-6));
          CHECK(static_cast<double>(one.targets) == targets);
          CHECK(std::isnan(one.mean()) == (targets == 0));
          sum += one.sum;
          weight += one.weight;
        }
        CHECK(sum == doctest::Approx(found.loss.item<double>()).epsilon(1e-6));
        CHECK(found.losses.add_up_to(sum / weight));
        CHECK_FALSE(found.losses.add_up_to(1.01 * sum / weight));
      }
}

TEST_CASE("sources' losses: a loss that is no sum over targets does not add up") {
  Running net(Loss::together);
  const train::MicroBatch batch = batch_of({0, 1, 0, 1, 0});
  const Tensor logits = at::randn({kRows, kLength, kVocabulary}).requires_grad_(true);
  const Measured found = measure(net, batch, logits, {});
  CHECK_FALSE(found.losses.add_up_to(found.loss.item<double>() / (kRows * kLength - 4)));
}

TEST_CASE(
    "sources' losses: a row that is not a number is its source's alone, and what is on top "
    "of a micro-batch's mean is on top of each of its sources'") {
  Running net(Loss::own);
  const train::MicroBatch batch = batch_of({0, 1, 0, 1, 0});
  Tensor logits = at::randn({kRows, kLength, kVocabulary});
  const Measured plain = measure(net, batch, logits, {}),
                 more = measure(net, batch, logits, {}, at::full({}, 0.25));
  for (size_t source : {size_t{0}, size_t{1}})
    CHECK(more.losses.found()[source].mean() ==
          doctest::Approx(plain.losses.found()[source].mean() + 0.25).epsilon(1e-6));
  CHECK(std::isnan(more.losses.found()[2].mean()));
  logits[3].fill_(std::nan(""));
  const Measured broken = measure(net, batch, logits, {});
  CHECK(broken.losses.found()[0].sum == plain.losses.found()[0].sum);
  CHECK(std::isnan(broken.losses.found()[1].sum));
}

}  // namespace source_losses_test
