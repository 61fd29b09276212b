// Text goes on from what was read: each further token is one row of the model, and the text is that
// of a model which reads all of it again.
#include "engine/train/run/tests/pipeline_layouts.h"

#include <doctest/doctest.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <vector>

#include "engine/train/step/last_logits.h"
#include "engine/train/step/sample.h"
#include "meshwright/nn/attention.h"
#include "meshwright/nn/layers.h"

namespace text_test {

using namespace meshwright;
using at::Tensor;

namespace {

constexpr int64_t kVocabulary = 256, kContext = 24;

// Two layers of attention by AttentionCore, whose tokens may be mixed in another way beside it.
struct OwnImpl : torch::nn::Module {
  explicit OwnImpl(bool beside) : mixes(beside) {
    embed = register_module("embed", Embedding(kVocabulary, 16));
    first = register_module("first", AttentionCore(AttentionOptions{.scale = 0.5}));
    second = register_module("second", AttentionCore(AttentionOptions{.scale = 0.5, .window = 5}));
    head = register_module("head", Linear(torch::nn::LinearOptions(16, kVocabulary)));
    at::manual_seed(3);
    for (Tensor& p : parameters()) p.data().normal_();
  }
  Tensor forward(const Tensor& ids) {
    Tensor x = embed(ids);
    for (AttentionCore* core : {&first, &second}) {
      const Tensor heads = x.view({x.size(0), x.size(1), 2, 8});
      x = x + (*core)(heads, heads, heads).flatten(2);
    }
    if (mixes) {  // each position with the one before, as a convolution does
      Tensor before = at::zeros_like(x);
      before.narrow(1, 1, x.size(1) - 1).copy_(x.narrow(1, 0, x.size(1) - 1));
      x = x + 0.3 * before;
    }
    return head(x);
  }
  bool mixes;
  Embedding embed{nullptr};
  AttentionCore first{nullptr}, second{nullptr};
  Linear head{nullptr};
};
MESHWRIGHT_MODULE(Own);

// Tells how many rows each forward has.
class Watched final : public RunningModel {
 public:
  Watched(std::shared_ptr<torch::nn::Module> module, std::function<Tensor(const Tensor&)> run)
      : module_(std::move(module)), run_(std::move(run)) {}
  std::shared_ptr<torch::nn::Module> module() override { return module_; }
  Tensor forward(const Tensor& input) override {
    rows.push_back(input.size(1));
    return run_(input);
  }
  std::vector<int64_t> rows;

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::function<Tensor(const Tensor&)> run_;
};

struct Made {
  std::string text;
  std::vector<int64_t> rows;
};
Made made_by(Watched& net, Trainer& trainer) {
  Made out;
  out.text = generate::write_sample(trainer, net, {"abc", 30, 0.9, 5}, kContext);
  out.rows = net.rows;
  return out;
}
// As a model writes that keeps nothing.
std::string read_again(const std::function<Tensor(const Tensor&)>& run) {
  generate::GenerateOptions options{.max_new_tokens = 30, .temperature = 0.9, .seed = 5};
  options.context = kContext;
  std::string out = "abc";
  for (int64_t id : generate::generate_tokens(run, {'a', 'b', 'c'}, options))
    out.push_back(static_cast<char>(id));
  return out;
}

// Three of the prompt, then one each until the context is full, then all of it.
std::vector<int64_t> one_each(std::vector<int64_t> begin) {
  while (begin.size() < 30) {
    const auto length = static_cast<int64_t>(begin.size()) + 3;
    begin.push_back(length <= kContext ? 1 : kContext);
  }
  return begin;
}

}  // namespace

TEST_CASE("text: each further token is one row, until the context is full") {
  TestFolder folder("text");
  SmallModel m = kStaged;
  m.vocab = kVocabulary;
  const Layout layout = staged_layout(write_model(folder.path, m), kAlone);
  run_ranks(1, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    rank.initialize();
    Watched bundled(rank.net.ptr(), [&](const Tensor& ids) { return rank.net(ids); });
    const Made made = made_by(bundled, rank.trainer);
    CHECK(made.text == read_again([&](const Tensor& ids) { return rank.net(ids); }));
    CHECK(made.rows == one_each({3}));
  });
}

TEST_CASE("text: a model of somebody else's is tried, and read anew where it mixes tokens itself") {
  TestFolder folder("text_own");
  SmallModel m = kStaged;
  m.vocab = kVocabulary;
  const Layout layout = staged_layout(write_model(folder.path, m), kAlone);
  for (const bool mixes : {false, true}) {
    CAPTURE(mixes);
    run_ranks(1, [&](const std::shared_ptr<World>& world) {
      Rank rank(layout, world);
      Own own(mixes);
      auto run = [&](const Tensor& ids) { return own(ids); };
      Watched net(own.ptr(), run);
      const Made made = made_by(net, rank.trainer);
      CHECK(made.text == read_again(run));
      // Once both ways.
      std::vector<int64_t> rows{3, 1, 4};
      if (mixes)
        for (int64_t length = 5; rows.size() < 31; ++length)
          rows.push_back(std::min(length, kContext));
      else
        for (int64_t length = 5; rows.size() < 31; ++length)
          rows.push_back(length <= kContext ? 1 : kContext);
      CHECK(made.rows == rows);
      // Of several, each as alone: the first of them shows whether anything can be kept.
      std::vector<std::vector<int64_t>> texts{{5, 1, 7}, {2, 8, 8, 4, 6}, {3, 3}};
      generate::LastLogits last(rank.trainer, net);
      const c10::NoGradGuard no_grad;
      for (int step = 0; step < 4; ++step) {
        CAPTURE(step);
        std::vector<generate::LastLogits::Text> given;
        for (size_t i = 0; i < texts.size(); ++i)
          given.push_back({static_cast<int64_t>(i), texts[i]});
        const Tensor found = last.of(given);
        for (size_t i = 0; i < texts.size(); ++i) {
          const Tensor whole = run(at::tensor(texts[i]).unsqueeze(0)).select(1, -1).select(0, 0);
          CHECK((found.select(0, static_cast<int64_t>(i)) - whole).abs().max().item<double>() <
                1e-5);
          texts[i].push_back(whole.argmax().item<int64_t>());
        }
      }
    });
  }
}

TEST_CASE("text: texts of unlike lengths that go on together have the logits of each alone") {
  TestFolder folder("text_together");
  SmallModel windowed{"windowed", "MistralForCausalLM", "mistral", 32, 4, 2, kVocabulary};
  windowed.more = R"(, "num_hidden_layers": 4, "sliding_window": 6)";
  const std::string model = write_model(folder.path, windowed);
  for (const OnMesh& mesh : std::vector<OnMesh>{kAlone,
                                                {2, {}},
                                                {2, {kTp2, kSequence}},
                                                {2, {kCp2}},
                                                {2, {kPp2}},
                                                {4, {kTp2, kSequence, kPp2}}}) {
    CAPTURE(mesh.sets);
    run_ranks(mesh.ranks, [&](const std::shared_ptr<World>& world) {
      Rank rank(staged_layout(model, mesh), world);
      rank.initialize();
      modules::RunningCausalLM net(rank.net);
      net.module()->eval();
      const c10::NoGradGuard no_grad;
      rank.trainer.model().summon_full_parameters([&] {
        generate::LastLogits together(rank.trainer, net);
        std::map<int64_t, std::vector<int64_t>> texts;
        auto begin = [&](int64_t number, int64_t length) {
          for (int64_t i = 0; i < length; ++i)
            texts[number].push_back((number * 31 + i * i * 7) % kVocabulary);
        };
        // One text ends while the others go on, and another begins.
        begin(0, 3);
        begin(1, 9);
        for (int64_t step = 0; step < 8; ++step) {
          if (step == 2) begin(2, 5);
          if (step == 5) {
            texts.erase(1);
            together.drop(1);
          }
          std::vector<generate::LastLogits::Text> given;
          for (const auto& [number, ids] : texts) given.push_back({number, ids});
          const Tensor found = together.of(given);
          for (size_t i = 0; i < given.size(); ++i) {
            CAPTURE(step);
            CAPTURE(given[i].number);
            generate::LastLogits alone(rank.trainer, net);
            const Tensor truth = alone.of({given[i]}).select(0, 0);
            CHECK((found.select(0, static_cast<int64_t>(i)) - truth).abs().max().item<double>() <=
                  1e-5 * truth.abs().max().item<double>());
            texts[given[i].number].push_back(truth.argmax().item<int64_t>());
          }
          // Of texts that have begun one row each is computed.
          if (step > 2) CHECK(together.computed() == static_cast<int64_t>(given.size()));
        }
      });
    });
  }
}

TEST_CASE("text: what begins as the text before it did is not read again") {
  TestFolder folder("text_turns");
  SmallModel m = kStaged;
  m.vocab = kVocabulary;
  const Layout layout = staged_layout(write_model(folder.path, m), kAlone);
  run_ranks(1, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    rank.initialize();
    Watched net(rank.net.ptr(), [&](const Tensor& ids) { return rank.net(ids); });
    const c10::NoGradGuard no_grad;
    generate::LastLogits kept(rank.trainer, net);
    rank.trainer.model().summon_full_parameters([&] {
      for (const std::string text : {"abcdef", "abcdefgh", "abcxyzw", "abcxyzw", "abc", "zz"}) {
        Tensor ids = at::empty({1, std::ssize(text)}, at::kLong);
        std::copy(text.begin(), text.end(), ids.mutable_data_ptr<int64_t>());
        const Tensor whole = rank.net(ids).narrow(1, std::ssize(text) - 1, 1);
        CHECK((kept.of(ids) - whole).abs().max().item<double>() < 1e-5);
      }
    });
    // The last token is read again where a text was known whole.
    CHECK(net.rows == std::vector<int64_t>{6, 2, 4, 1, 1, 2});
  });
}

}  // namespace text_test
