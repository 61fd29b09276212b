// diloco beside a loop by hand, through a checkpoint in the middle of a round, and on the wire.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <meshwright/footprint.h>
#include <meshwright/nn/layers.h>
#include <meshwright/parallel/testing.h>
#include <meshwright/trainer.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cstdlib>
#include <filesystem>
#include <map>

// After LibTorch, which has a CHECK of its own.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

using namespace meshwright;
using at::Tensor;
namespace fs = std::filesystem;

extern "C" const meshwright_plugin meshwright_plugin_v1;

namespace {

constexpr int64_t kWidth = 5, kBatch = 8;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("layers", layers);
    at::Generator generator = at::detail::createCPUGenerator(3);
    c10::NoGradGuard no_grad;
    for (int i = 0; i < 3; ++i) {
      layers->push_back(Linear(kWidth, kWidth));
      for (Tensor& p : layers[static_cast<size_t>(i)]->parameters())
        p.copy_(at::randn(p.sizes(), generator) * 0.3);
    }
  }
  // Numbers of few binary digits: then nothing is rounded in the first two steps.
  void make_exact() {
    exact = true;
    c10::NoGradGuard no_grad;
    for (Tensor& p : parameters()) p.copy_((p * 4).round() / 4);
  }
  Tensor forward(Tensor x) {
    if (exact) {
      Tensor sum = at::zeros_like(x);
      for (const auto& layer : *layers) sum = sum + layer->as<Linear>()->forward(x);
      return sum;
    }
    for (const auto& layer : *layers) x = x + layer->as<Linear>()->forward(x).tanh();
    return x;
  }
  torch::nn::ModuleList layers;
  bool exact = false;
};
MESHWRIGHT_MODULE(Net);

// The samples of one data-parallel rank: one of `count` parts of a step's.
Tensor loss_sum(Net& net, int64_t step, int64_t part, int64_t count) {
  at::Generator generator = at::detail::createCPUGenerator(100 + static_cast<uint64_t>(step));
  Tensor all = at::randn({2, kBatch, kWidth}, generator);
  if (net->exact) all = all.round().clamp(-2, 2);
  const int64_t rows = kBatch / count;
  return at::mse_loss(net(all[0].narrow(0, part * rows, rows)), all[1].narrow(0, part * rows, rows),
                      at::Reduction::Sum);
}

struct Rank {
  std::map<std::string, Tensor> parts;  // local values, by parameter
  std::vector<double> losses, norms;
  struct Sent {
    int64_t count = 0, bytes = 0;
  } between;  // replicas
};
using Ranks = std::vector<Rank>;

struct Wanted {
  int64_t ranks = 4, replicas = 2, steps = 7;
  std::string strategy = "diloco", optimizer = "adamw";
  std::vector<std::string> more = {};
  fs::path load = {}, save = {};  // a checkpoint to begin with; where to save the last step
  SaveReason before_end = SaveReason::asked;
  int64_t spoilt = -1;  // a step in which the last rank's gradients are infinite
  bool exact = false;   // Net::make_exact()
};

Ranks run_job(const Wanted& wanted) {
  std::vector<std::string> settings = {
      "distributed.strategy=\"" + wanted.strategy + "\"",
      "distributed.dp_replicate_size=" + std::to_string(wanted.replicas),
      "optimizer.name=\"" + wanted.optimizer + "\"",
      "step_scheduler.local_batch_size=" + std::to_string(kBatch / wanted.ranks)};
  settings.insert(settings.end(), wanted.more.begin(), wanted.more.end());
  const std::string toml = R"(
    schema = 1
    [plugins]
    load = [")" PLUGIN_LIBRARY R"("]
    [distributed.mp_policy]
    param_dtype = "float32"
    output_dtype = "float32"
    [step_scheduler]
    global_batch_size = 8
    max_steps = 20
    [optimizer]
    lr = 0.05
    max_grad_norm = "none"
    [lr_scheduler]
    lr_decay_style = "constant"
    lr_warmup_steps = 0
  )";
  std::vector<Job> jobs;
  std::vector<Net> nets;
  for (int64_t rank = 0; rank < wanted.ranks; ++rank) {
    jobs.push_back(Job::from_text(toml, settings));
    nets.emplace_back();
    if (wanted.exact) nets.back()->make_exact();
  }
  Ranks out(static_cast<size_t>(wanted.ranks));
  run_ranks(wanted.ranks, [&](const std::shared_ptr<World>& world) {
    const auto rank = static_cast<size_t>(world->rank());
    Trainer trainer(jobs[rank], world, nets[rank].ptr());
    trainer.tell_written({ValuesWritten::By::initialization});
    if (!wanted.load.empty()) trainer.load(wanted.load.string());
    while (trainer.next_step() < wanted.steps) {
      const StepResult result = trainer.step([&](int64_t) {
        Tensor sum =
            loss_sum(nets[rank], trainer.next_step(), trainer.data_parallel_rank(), wanted.ranks);
        // Gradients alone: losses are summed over all ranks anyway.
        if (trainer.next_step() == wanted.spoilt && world->rank() + 1 == wanted.ranks)
          sum.register_hook([](const Tensor& gradient) { return gradient / 0.0; });
        return MicroBatchLoss{sum, kBatch / wanted.ranks};
      });
      out[rank].losses.push_back(result.loss);
      out[rank].norms.push_back(result.grad_norm);
    }
    if (wanted.before_end != SaveReason::asked) trainer.before_save(wanted.before_end);
    if (!wanted.save.empty()) trainer.save(wanted.save.string());
    for (const TrafficCounter::Row& row : world->traffic().rows())
      if (row.axis == "dp_replicate") out[rank].between = {row.count, row.bytes};
    for (const ParallelParameter& p : trainer.model().parameters())
      out[rank].parts[p.name] = p.local.detach().clone();
  });
  return out;
}

bool same(const Rank& a, const Rank& b, double tolerance = 0) {
  if (a.parts.size() != b.parts.size()) return false;
  for (const auto& [name, part] : a.parts)
    if (tolerance == 0 ? !part.equal(b.parts.at(name))
                       : !part.allclose(b.parts.at(name), tolerance, tolerance))
      return false;
  return true;
}

// By hand: replicas one after the other, SGD within them, the outer step as torch's SGD with
// nesterov = true takes it.
std::map<std::string, Tensor> by_hand(int64_t replicas, int64_t steps, int64_t every,
                                      double outer_lr, double momentum, double lr) {
  std::vector<Net> nets(static_cast<size_t>(replicas));
  for (Net& net : nets) net = Net();
  Net outer;
  std::map<std::string, Tensor> buffers;
  for (const auto& p : outer->named_parameters()) buffers[p.key()] = at::zeros_like(p.value());
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t r = 0; r < replicas; ++r) {
      Net& net = nets[static_cast<size_t>(r)];
      net->zero_grad();
      (loss_sum(net, step, r, replicas) * (static_cast<double>(replicas) / kBatch)).backward();
      c10::NoGradGuard no_grad;
      for (Tensor& p : net->parameters()) p.sub_(p.grad(), lr);
    }
    if ((step + 1) % every != 0) continue;
    c10::NoGradGuard no_grad;
    for (const auto& p : outer->named_parameters()) {
      Tensor gradient = p.value().clone(), &buffer = buffers[p.key()];
      for (Net& net : nets)
        gradient.sub_(net->named_parameters()[p.key()], 1.0 / static_cast<double>(replicas));
      buffer.mul_(momentum).add_(gradient);
      Tensor(p.value()).sub_(gradient + buffer * momentum, outer_lr);
      for (Net& net : nets) net->named_parameters()[p.key()].copy_(p.value());
    }
  }
  std::map<std::string, Tensor> out;
  for (const auto& p : nets[0]->named_parameters()) out[p.key()] = p.value().detach();
  return out;
}

// A folder that goes with it.
struct Folder {
  Folder() {
    std::string name = (fs::temp_directory_path() / "diloco_XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  fs::path path;
};

const std::vector<std::string> kSgd = {"optimizer.lr=0.1", "optimizer.weight_decay=0",
                                       "optimizer.momentum=0"};

std::vector<std::string> rounds(int64_t every, double lr, double momentum) {
  return {"distributed.diloco.sync_every=" + std::to_string(every),
          "distributed.diloco.outer_lr=" + std::to_string(lr),
          "distributed.diloco.outer_momentum=" + std::to_string(momentum)};
}

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST_CASE(
    "replicas of one and of two ranks do what a loop by hand does, within a round and after") {
  for (int64_t steps : {3, 5, 6, 9}) {
    const auto expected = by_hand(2, steps, 3, 0.7, 0.9, 0.1);
    const Ranks two = run_job(
        {.ranks = 2, .steps = steps, .optimizer = "sgd", .more = kSgd + rounds(3, 0.7, 0.9)});
    REQUIRE(two[0].parts.size() == expected.size());
    for (const auto& [name, whole] : expected) {
      CAPTURE(steps);
      CAPTURE(name);
      CHECK(two[0].parts.at(name).allclose(whole, 1e-5, 1e-6));
    }
    // Within a round the replicas are apart, and after it they are not.
    CHECK(same(two[0], two[1]) == (steps % 3 == 0));
    const Ranks four =
        run_job({.steps = steps, .optimizer = "sgd", .more = kSgd + rounds(3, 0.7, 0.9)});
    CHECK(same(four[0], four[2]) == (steps % 3 == 0));
    CHECK(four[0].losses.back() == doctest::Approx(two[0].losses.back()).epsilon(1e-5));
    CHECK(four[0].norms == four[3].norms);
  }
}

// A mean of updated weights is rounded otherwise than an update by the mean of gradients. Where
// nothing has to be rounded, they are the same numbers.
TEST_CASE("rounds of one step without an outer optimizer are fsdp2 to the bit, but for rounding") {
  const std::vector<std::string> sgd = kSgd + std::vector<std::string>{"optimizer.lr=0.03125"};
  for (int64_t replicas : {2, 4}) {
    const Wanted job{.ranks = 4,
                     .replicas = replicas,
                     .steps = 2,
                     .optimizer = "sgd",
                     .more = sgd + rounds(1, 1, 0),
                     .exact = true};
    Wanted whole = job;
    whole.strategy = "fsdp2";
    whole.replicas = replicas == 4 ? 2 : replicas;  // fsdp2 shards over two ranks at least
    whole.more = sgd;
    const Ranks found = run_job(job), expected = run_job(whole);
    CHECK(found[0].losses == expected[0].losses);
    CHECK(found[0].losses[1] < found[0].losses[0]);
    if (replicas == 2)
      for (size_t rank = 0; rank < found.size(); ++rank) CHECK(same(found[rank], expected[rank]));
    if (replicas == 4)
      for (const auto& [name, part] : expected[0].parts)
        CHECK(at::cat({part, expected[1].parts.at(name)}).equal(found[0].parts.at(name)));
  }
}

TEST_CASE("rounds of one step without an outer optimizer are fsdp2's mean of gradients") {
  const Ranks expected = run_job({.strategy = "fsdp2", .optimizer = "sgd", .more = kSgd});
  for (const std::string strategy : {"diloco", "local_sgd"}) {
    const Ranks found =
        run_job({.strategy = strategy,
                 .optimizer = "sgd",
                 .more = kSgd + (strategy == "diloco"
                                     ? rounds(1, 1, 0)
                                     : std::vector<std::string>{"distributed.local_sgd.h=1"})});
    for (size_t rank = 0; rank < found.size(); ++rank) {
      CHECK(same(found[rank], expected[rank], 1e-6));
      for (size_t i = 0; i < expected[rank].losses.size(); ++i)
        CHECK(found[rank].losses[i] == doctest::Approx(expected[rank].losses[i]).epsilon(1e-6));
    }
  }
}

TEST_CASE(
    "a run that goes on from the middle of a round does what an unbroken one does, bit by bit") {
  for (int64_t cut : {2, 3, 4, 5}) {
    Folder folder;
    const std::vector<std::string> settings = rounds(3, 0.7, 0.9);
    const Ranks unbroken = run_job({.steps = 8, .more = settings});
    run_job({.steps = cut, .more = settings, .save = folder.path});
    const Ranks resumed = run_job({.steps = 8, .more = settings, .load = folder.path});
    for (size_t rank = 0; rank < unbroken.size(); ++rank) {
      CAPTURE(cut);
      CAPTURE(rank);
      CHECK(same(unbroken[rank], resumed[rank]));
      CHECK(unbroken[rank].losses.back() == resumed[rank].losses.back());
    }
  }
}

TEST_CASE(
    "after a round any layout goes on, and another strategy takes the first replica's weights") {
  Folder folder;
  run_job({.steps = 6, .more = rounds(3, 0.7, 0.9), .save = folder.path});
  const Ranks two =
      run_job({.ranks = 2, .replicas = 1, .steps = 6, .strategy = "fsdp2", .load = folder.path});
  const Ranks whole = run_job({.ranks = 1, .replicas = 1, .steps = 6, .load = folder.path});
  for (const auto& [name, part] : whole[0].parts)
    CHECK(at::cat({two[0].parts.at(name), two[1].parts.at(name)}).equal(part));
}

TEST_CASE("a round has as many updates as ever where a step is left out") {
  Wanted wanted{.ranks = 2, .steps = 7, .more = rounds(3, 0.7, 0.9)};
  const Ranks whole = run_job(wanted);
  REQUIRE(whole[0].between.count > 0);
  for (const char* set : {"run.skip_step_above_z=6", "run.stop_on_nonfinite=false"})
    wanted.more.emplace_back(set);
  wanted.spoilt = 5;  // one round less would be over after it, were it counted
  wanted.steps = 6;
  const Ranks early = run_job(wanted);
  CHECK(2 * early[0].between.count == whole[0].between.count);
  CHECK(!same(early[0], early[1]));  // in the middle of a round
  wanted.steps = 7;
  const Ranks late = run_job(wanted);
  CHECK(late[0].between.count == whole[0].between.count);
  CHECK(same(late[0], late[1]));
  for (const auto& [name, part] : late[0].parts) CHECK(part.isfinite().all().item<bool>());
}

TEST_CASE("between replicas only the ends of rounds are sent, as planned") {
  const meshwright_strategy& about = meshwright_plugin_v1.strategies[0];
  meshwright_status status{sizeof(meshwright_status), 0, {}};
  const std::shared_ptr<Strategy> strategy(static_cast<Strategy*>(about.create(&status)),
                                           about.destroy);
  StrategyConfig config;
  config.mp_policy() = {DType::float32, DType::float32, DType::float32, true};
  config.sizes().dp_replicate = 2;
  config.own() =
      Options(make_schema("distributed.diloco", "diloco", {about.options, about.option_count}));
  config.own().set("sync_every", int64_t{10});
  Net net;
  const ModelOutline outline = outline_of(*net);
  const MeshPlan mesh = strategy->plan_mesh({4, {}, config});
  const ShardingRequest request{outline, mesh, {}, config};
  const Footprint planned = footprint_of(request, strategy->plan_sharding(request));
  int64_t bytes = 0, count = 0;
  for (const WireRow& row : planned.wire) {
    if (row.axis != "dp_replicate") continue;
    CHECK(row.op == "all_reduce");
    CHECK(row.every == 10);
    bytes += row.bytes, count += row.count;
  }
  REQUIRE(bytes > 0);
  for (int64_t rounds : {0, 1, 2}) {
    const Ranks found = run_job({.steps = 10 * rounds + 2, .more = ::rounds(10, 0.7, 0.9)});
    for (const Rank& rank : found) {
      CHECK(rank.between.bytes == rounds * bytes);
      CHECK(rank.between.count == rounds * count);
    }
  }
}

TEST_CASE("a replica whose loss is not finite ends all of them at the same step") {
  try {
    run_job({.ranks = 2, .spoilt = 3});
    FAIL("went on");
  } catch (const Error& error) {
    CHECK((error.code() == ErrorCode::nonfinite));
    CHECK(error.message().find("step 3") != std::string::npos);
  }
}

TEST_CASE("the end of a run brings the replicas together, a preemption does not") {
  for (SaveReason reason : {SaveReason::stop, SaveReason::scheduled, SaveReason::end}) {
    const Ranks found =
        run_job({.ranks = 2, .steps = 4, .more = rounds(3, 0.7, 0.9), .before_end = reason});
    CHECK(same(found[0], found[1]) == (reason == SaveReason::end));
  }
}

TEST_CASE("what cannot be is refused with what to change") {
  auto refused = [](const std::vector<std::string>& settings) {
    try {
      run_job({.ranks = 2, .more = settings});
    } catch (const Error& error) {
      return std::string(error.key()) + (error.helps().empty() ? "" : " helps");
    }
    return std::string("accepted");
  };
  CHECK(refused({"optimizer.main_dtype=\"float32\""}) == "optimizer.main_dtype helps");
  CHECK(refused({"distributed.dp_replicate_size=1", "distributed.pp_size=2"}) ==
        "distributed.pp_size helps");
  CHECK(refused({"distributed.diloco.sync_every=0"}) == "distributed.diloco.sync_every helps");
}
