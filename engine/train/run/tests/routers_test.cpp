// Training with experts: load of all ranks and micro-batches, score corrections, auxiliary losses,
// the same on every layout; and how it is shown.
#include "engine/train/run/metrics.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/container/modulelist.h>

// Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/curves.h"

#include <doctest/doctest.h>

#include <boost/json/parse.hpp>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>

#include "engine/job/plan.h"
#include "engine/train/step/logits.h"
#include "meshwright/nn/moe.h"
#include "meshwright/nn/stage.h"
#include "meshwright/parallel/testing.h"

namespace routers_test {

using namespace meshwright;
using at::Tensor;

namespace {

MoeConfig block_config() {
  MoeConfig c;
  c.dim = 8;
  c.moe_inter_dim = 6;
  c.n_routed_experts = 4;
  c.n_activated_experts = 2;
  c.score_func = ScoreFunction::sigmoid_with_bias;
  c.norm_topk_prob = true;
  c.gate_bias_update_factor = 0.01;
  c.aux_loss_coeff = 0.05;
  c.n_shared_experts = 1;
  c.shared_expert_gate = true;
  return c;
}

struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    norm = register_module("norm", RMSNorm(8, 1e-6));
    mlp = register_module("mlp", Moe(block_config()));
  }
  Tensor forward(const Tensor& x) { return x + mlp(norm(x)); }
  RMSNorm norm{nullptr};
  Moe mlp{nullptr};
};
MESHWRIGHT_MODULE(Layer);

struct ReaderImpl : torch::nn::Module {
  ReaderImpl() {
    embed = register_module("embed", Embedding(13, 8));
    register_module("layers", layers);
    for (int i = 0; i < 2; ++i) layers->push_back(Layer());
    head = register_module("head", Linear(torch::nn::LinearOptions(8, 13)));
  }
  Tensor forward(const Tensor& in) {
    const StagePart part = current_stage();
    Tensor x = part.first ? embed(in) : in;
    for (int64_t i = part.begin; i < part.end_of(2); ++i)
      x = layers[static_cast<size_t>(i)]->as<Layer>()->forward(x);
    return part.last ? head(x) : x;
  }
  Embedding embed{nullptr};
  torch::nn::ModuleList layers;
  Linear head{nullptr};
};
MESHWRIGHT_MODULE(Reader);

struct Result {
  std::vector<double> losses, norms;
  std::vector<std::vector<int64_t>> loads;  // of every step, both blocks
  std::map<std::string, Tensor> biases;     // by block
  std::map<std::string, Tensor> parameters;
};

std::map<std::string, Tensor> biases_of(Reader& net) {
  std::map<std::string, Tensor> out;
  for (auto& [name, block] : find_moe_blocks(*net))
    out[name] = block->gate()->e_score_correction_bias.clone();
  return out;
}

// Micro-batches of one sample of 5 tokens, so that auxiliary losses are over the same tokens on
// every layout. `spoilt`: the step whose losses are not a number.
Result train_reader(int64_t ranks, const std::string& strategy,
                    const std::vector<std::pair<std::string, std::string>>& sets = {},
                    int spoilt = -1) {
  Result out;
  std::mutex mutex;
  run_ranks(ranks, [&](const std::shared_ptr<World>& world) {
    Job job;
    std::vector<std::pair<std::string, std::string>> keys{
        {"distributed.strategy", "\"" + strategy + "\""},
        {"distributed.mp_policy.param_dtype", "\"float32\""},
        {"distributed.mp_policy.output_dtype", "\"float32\""},
        {"optimizer.eps", "1e-5"},
        {"step_scheduler.global_batch_size", "12"},
        {"step_scheduler.local_batch_size", "1"}};
    keys.insert(keys.end(), sets.begin(), sets.end());
    for (const auto& [key, value] : keys) job.set(key, value);
    Reader net;
    {
      c10::NoGradGuard no_grad;
      uint64_t seed = 1;
      for (auto& item : net->named_parameters())
        item.value().copy_(at::randn(item.value().sizes(), at::detail::createCPUGenerator(seed++)) *
                           0.5);
    }
    Trainer trainer(job, world, net.ptr(), {}, 5);
    net->train();
    Result mine;
    for (int step = 0; step < 6; ++step) {
      const std::map<std::string, Tensor> before = biases_of(net);
      StepResult result = trainer.step([&](int64_t micro, const Tensor& hidden) {
        Tensor ids = at::empty({1, 6}, at::kLong);
        int64_t first =
            step * 12 + micro * trainer.data_parallel_size() + trainer.data_parallel_rank();
        for (int64_t i = 0; i < 6; ++i) ids[0][i].fill_((first * 6 + i) * (first * 6 + i + 3) % 13);
        Tensor logits = net(current_stage().first ? ids.narrow(1, 0, 5) : hidden);
        if (!current_stage().last) return MicroBatchLoss{logits, 5};
        return MicroBatchLoss{
            at::cross_entropy_loss(logits.flatten(0, 1), ids.narrow(1, 1, 5).flatten(), {},
                                   at::Reduction::Sum) *
                (step == spoilt ? std::nan("") : 1.0),
            5};
      });
      for (const auto& [name, bias] : biases_of(net))
        CHECK(bias.equal(before.at(name)) == (step == spoilt));
      mine.losses.push_back(result.loss);
      mine.norms.push_back(result.grad_norm);
      REQUIRE(result.experts.size() == 2);
      CHECK(result.experts[1].block == "layers.1.mlp");
      CHECK(result.experts[1].active == 2);
      for (const ExpertLoad& load : result.experts) mine.loads.push_back(load.tokens);
    }
    std::map<std::string, Tensor> biases = biases_of(net);
    for (const ParallelParameter& p : trainer.model().parameters())
      mine.parameters[p.name] = trainer.model().full_tensor(p.name).clone();
    std::lock_guard lock(mutex);
    if (world->rank() == world->size() - 1)
      out.losses = mine.losses, out.norms = mine.norms, out.loads = mine.loads;
    out.biases.merge(biases);  // stages of a pipeline have others each
    out.parameters.merge(mine.parameters);
  });
  return out;
}

}  // namespace

TEST_CASE("load, score corrections and auxiliary losses are the same on every layout") {
  Result alone = train_reader(1, "ddp");
  for (const std::vector<int64_t>& load : alone.loads)
    CHECK(std::accumulate(load.begin(), load.end(), int64_t{0}) == 12 * 5 * 2);
  REQUIRE(alone.biases.size() == 2);
  for (const auto& [block, bias] : alone.biases) {
    CHECK(bias.abs().max().item<double>() <= 0.06 + 1e-6);
    CHECK(bias.abs().max().item<double>() > 0);
  }
  struct Row {
    int64_t ranks;
    const char* strategy;
    std::vector<std::pair<std::string, std::string>> sets;
  };
  for (const Row& row : {Row{2, "ddp", {}}, Row{3, "fsdp2", {}},
                         Row{4, "fsdp2", {{"distributed.dp_replicate_size", "2"}}},
                         Row{2, "fsdp2", {{"distributed.activation_checkpointing", "\"full\""}}},
                         Row{2, "fsdp2", {{"distributed.pp_size", "2"}}},
                         Row{4, "fsdp2", {{"distributed.pp_size", "2"}}},
                         Row{2,
                             "fsdp2",
                             {{"distributed.activation_checkpointing", "\"selective\""},
                              {"distributed.moe.ignore_router_for_ac", "false"}}}}) {
    INFO(row.strategy << " on " << row.ranks);
    Result found = train_reader(row.ranks, row.strategy, row.sets);
    CHECK(farthest(found.losses, alone.losses) < 1e-5);
    CHECK(farthest(found.norms, alone.norms) < 1e-5);
    CHECK(found.loads == alone.loads);
    REQUIRE(found.biases.size() == 2);
    for (const auto& [block, bias] : alone.biases) CHECK(found.biases.at(block).equal(bias));
    REQUIRE(found.parameters.size() == alone.parameters.size());
    for (const auto& [name, value] : alone.parameters) {
      INFO(name);
      CHECK(farthest(found.parameters.at(name), value) < 1e-5);
    }
  }
}

TEST_CASE(
    "an evaluation is cross entropy, whatever is read together; the auxiliary loss is beside") {
  // "output_router_logits": true: the loss of a step has the auxiliary loss in it.
  const std::string model = MESHWRIGHT_SOURCE_DIR "/configs/models/mixtral-tiny.json";
  std::map<int64_t, train::Evaluation> found;
  double step_loss = 0;
  for (int64_t rows : {1, 4, 12})
    run_ranks(1, [&](const std::shared_ptr<World>& world) {
      Rank rank({"ddp", 1, {"step_scheduler.local_batch_size=" + std::to_string(rows)}, model},
                world);
      rank.initialize();
      found[rows] =
          train::Evaluator::run(rank.trainer, kBatch / rows, [&](int64_t micro, const at::Tensor&) {
            at::Tensor ids = at::empty({rows, kLength + 1}, at::kLong);
            for (int64_t row = 0; row < rows; ++row)
              fill_sample(micro * rows + row, rank.net->outline().vocab_size,
                          ids.mutable_data_ptr<int64_t>() + row * (kLength + 1));
            return train::loss_of(rank.trainer, rank.net, ids);
          });
      if (rows == 12) step_loss = rank.step().loss;
    });
  const train::Evaluation whole = found.at(12);
  CHECK(whole.targets == kBatch * kLength);
  CHECK(whole.auxiliary > 0);
  // The same samples in one micro-batch: what the step's loss has more is the auxiliary loss.
  CHECK(step_loss == doctest::Approx(whole.loss + whole.auxiliary).epsilon(1e-6));
  for (const auto& [rows, one] : found) {
    CAPTURE(rows);
    CHECK(one.loss == doctest::Approx(whole.loss).epsilon(1e-6));
    if (rows != 12) CHECK(one.auxiliary != whole.auxiliary);
  }
}

TEST_CASE("a step that is left out corrects no scores, and its load is told") {
  for (int64_t ranks : {1, 2}) {
    const Result found = train_reader(
        ranks, "fsdp2", {{"run.skip_step_above_z", "6"}, {"run.stop_on_nonfinite", "false"}}, 3);
    for (size_t step = 0; step < 6; ++step) CHECK(std::isnan(found.losses[step]) == (step == 3));
    for (const std::vector<int64_t>& load : found.loads)
      CHECK(std::accumulate(load.begin(), load.end(), int64_t{0}) == 12 * 5 * 2);
  }
}

TEST_CASE("routing anew under activation checkpointing is warned of, by the plan already") {
  auto warnings = [](const std::string& model, const std::vector<std::string>& sets) {
    Job job = Job::from_text("schema = 1\n[model]\nconfig = \"" MESHWRIGHT_SOURCE_DIR
                             "/tests/data/models/" +
                                 model + "/config.json\"\n",
                             sets);
    return plan::make_plan(job.impl(), {.world_size = 1, .rank = 0}).warnings;
  };
  const std::string full = "distributed.activation_checkpointing=full",
                    again = "distributed.moe.ignore_router_for_ac=false";
  REQUIRE(warnings("mixtral_tiny", {full, again}).size() == 1);
  CHECK(warnings("mixtral_tiny", {full, again})[0].find(
            "distributed.moe.ignore_router_for_ac = false") != std::string::npos);
  CHECK(warnings("mixtral_tiny", {full}).empty());
  CHECK(warnings("mixtral_tiny", {again}).empty());
  CHECK(warnings("llama_tiny", {full, again}).empty());
}

namespace {

StepResult result_of(std::vector<std::vector<int64_t>> blocks, int64_t positions) {
  StepResult out;
  out.positions = positions;
  out.tokens = positions - positions / 4;  // those behind the last targets are read, too
  out.count = positions / 2;
  for (auto& tokens : blocks)
    out.experts.push_back(
        {"model.layers." + std::to_string(out.experts.size()) + ".mlp", std::move(tokens), 2});
  return out;
}

}  // namespace

TEST_CASE(
    "a step's row says how many tokens each expert got, how uneven that is, and that none was "
    "dropped") {
  using train::load_fields, train::load_words;
  CHECK(load_fields(StepResult{}).empty());
  CHECK(load_words(StepResult{}).empty());
  StepResult even = result_of({{4, 4, 4, 4}, {8, 0, 8, 0}}, 8);
  CHECK(
      load_fields(even) ==
      R"(, "expert_tokens": [12, 4, 12, 4], "expert_imbalance": [1.0000, 2.0000], "dropped_tokens": 0)");
  CHECK(load_words(even) == "  experts up to 2.00x");
  CHECK(load_fields(result_of({{3, 4, 4, 4}}, 8)).find("\"dropped_tokens\": 1") !=
        std::string::npos);
  CHECK(result_of({{0, 0}}, 0).experts[0].imbalance() == 1);
}

TEST_CASE("the picture of expert load shows each expert beside the mean, and fits the terminal") {
  train::LoadHistory history;
  CHECK(history.empty());
  CHECK(history.draw({}).empty());
  history.add(StepResult{});
  CHECK(history.empty());
  history.add(result_of({{4, 4, 4, 4}, {8, 0, 7, 1}}, 8));
  history.add(result_of({{4, 4, 4, 4}, {8, 0, 7, 1}}, 8));
  CHECK(history.draw({}) ==
        "expert load over 2 steps beside the mean (· none, ▄ mean, █ 2x and more)\n"
        "model.layers.0.mlp  ▄▄▄▄  up to 1.00x\n"
        "model.layers.1.mlp  █·▇▁  up to 2.00x, 1 unused");
  CHECK(history.draw({.colour = false, .unicode = false, .width = 80})
            .find("model.layers.1.mlp  8.71  up to 2.00x") != std::string::npos);
  boost::json::object json = boost::json::parse(history.json()).as_object();
  CHECK(json.at("steps").as_int64() == 2);
  CHECK(json.at("blocks").as_array()[1].as_object().at("tokens").as_array()[2].as_int64() == 14);

  // Many blocks of many experts: the most uneven rows, and several experts a column.
  std::vector<std::vector<int64_t>> blocks;
  for (int64_t b = 0; b < 48; ++b) {
    std::vector<int64_t> tokens(256, 10);
    tokens[static_cast<size_t>(b)] = 10 + b;
    blocks.push_back(tokens);
  }
  train::LoadHistory large;
  large.add(result_of(blocks, 1));
  std::string picture = large.draw({});
  size_t lines = 0;
  for (size_t at = 0; at <= picture.size(); ++lines) {
    size_t end = std::min(picture.find('\n', at), picture.size());
    CHECK(report::display_width(picture.substr(at, end - at)) <= 80);
    at = end + 1;
  }
  CHECK(lines == 18);
  CHECK(picture.find("model.layers.47.mlp") != std::string::npos);
  CHECK(picture.find("model.layers.3.mlp") == std::string::npos);
  CHECK(picture.find("and 32 more blocks, none above ") != std::string::npos);
}

}  // namespace routers_test
