// A program's own optimizer and learning rate in place of those of the configuration.
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

#include <limits>
#include <mutex>

#include "engine/train/run/tests/saved.h"
#include "engine/train/run/tests/small_models.h"
#include "engine/train/step/optimizer.h"

// After LibTorch, which has a CHECK of its own.
#include <doctest/doctest.h>

namespace own_optimizer_test {

using namespace meshwright;
namespace fs = std::filesystem;

namespace {

// What the engine's AdamW computes, by its defaults.
OwnOptimizer own_adamw() {
  return {"own_adamw", {"exp_avg", "exp_avg_sq"}, [](const ParamGroup& group) {
            const at::Tensor count = at::full({}, static_cast<double>(group.step),
                                              group.values.options().dtype(at::kFloat));
            at::_fused_adamw_({group.values}, {group.grads}, {group.states[0]}, {group.states[1]},
                              {}, {count}, group.lr, 0.9, 0.95, group.weight_decay, 1e-8,
                              /*amsgrad=*/false, /*maximize=*/false);
          }};
}

enum class Of : uint8_t { engine, program };

// Steps after loading `from`, or from fresh weights, with a checkpoint in `to` at the end and,
// from the beginning, one after three steps. Returns the learning rates.
std::vector<double> train(const Layout& layout, Of of, const fs::path& from, const fs::path& to,
                          int steps) {
  std::vector<double> out;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    if (of == Of::program) {
      rank.trainer.set_optimizer(own_adamw());
      const train::Schedule schedule(rank.job.table("optimizer"), rank.job.table("lr_scheduler"),
                                     rank.trainer.max_steps());
      rank.trainer.set_learning_rate([schedule](int64_t step) { return schedule.at(step); });
    }
    if (from.empty())
      rank.initialize();
    else
      rank.trainer.load(from.string());
    std::vector<double> rates;
    for (int step = 0; step < steps; ++step) {
      if (step == 3) rank.trainer.save(to.string());
      rates.push_back(rank.step().lr);
    }
    rank.trainer.save(to.string());
    if (world->rank() == 0) out = rates;
  });
  return out;
}

std::string message_of(const std::function<void()>& body, ErrorCode code) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    CHECK(!error.helps().empty());
    return error.message();
  }
  return "it throws nothing";
}

}  // namespace

TEST_CASE("a program's own AdamW and schedule make the bits of the engine's, and go on with them") {
  TestFolder folder("own_optimizer");
  Layout main{"fsdp2", 2, {"optimizer.main_dtype=float32"}};
  main.storage = DType::bfloat16;
  int number = 0;
  for (const Layout& layout :
       {Layout{"ddp", 2}, Layout{"fsdp2", 3}, main,
        Layout{"fsdp2",
               2,
               {"optimizer.group=[{pattern = \"*norm*\", weight_decay = 0, lr_factor = 0.5}]"}}}) {
    INFO(layout.text());
    const fs::path in = folder.path / std::to_string(number++);
    const std::vector<double> rates = train(layout, Of::engine, {}, in / "engine", 5);
    CHECK(train(layout, Of::program, {}, in / "own", 5) == rates);
    for (const char* step : {"step_00000003", "step_00000005"})
      CHECK(contents(in / "own" / step) == contents(in / "engine" / step));
    train(layout, Of::program, in / "own" / "step_00000003", in / "again", 2);
    CHECK(contents(in / "again" / "step_00000005") == contents(in / "own" / "step_00000005"));
    CHECK(checkpoint::Checkpoint(in / "own" / "step_00000003").meta().optimizer == "own_adamw");
  }
  // In another layout, too.
  train({"fsdp2", 3}, Of::program, folder.path / "0" / "own" / "step_00000003",
        folder.path / "other", 0);
  CHECK(contents(folder.path / "other" / "step_00000003") ==
        contents(folder.path / "0" / "own" / "step_00000003"));
  const auto other = [&](const Of of, const char* made_by) {
    return message_of([&] { train({"ddp", 1}, of, folder.path / "0" / made_by, folder.path, 0); },
                      ErrorCode::checkpoint_mismatch);
  };
  CHECK(other(Of::engine, "own").find("of the optimizer own_adamw, this job's is adamw") !=
        std::string::npos);
  CHECK(other(Of::program, "engine").find("of the optimizer adamw, this job's is own_adamw") !=
        std::string::npos);
}

TEST_CASE("a program's optimizer comes too late behind a checkpoint or a step of no update, too") {
  TestFolder folder("own_optimizer_late");
  run_ranks(1, [&](const std::shared_ptr<World>& world) {
    const auto given = [](Trainer& trainer) {
      return message_of([&] { trainer.set_optimizer(own_adamw()); }, ErrorCode::conflict);
    };
    const std::string late = "Trainer::set_optimizer() got an optimizer after the run had begun";
    Rank first({"ddp", 1}, world);
    first.initialize();
    first.trainer.save(folder.path.string());
    Rank loads({"ddp", 1}, world);
    loads.trainer.load(folder.path.string());
    CHECK(given(loads.trainer) == late);
    Rank leaves_out({"ddp",
                     1,
                     {"distributed.mp_policy.param_dtype=float16", "optimizer.loss_scale=65536",
                      "optimizer.dynamic_loss_scale=true"}},
                    world);
    leaves_out.initialize();
    leaves_out.step(3e4);
    CHECK(train::optimizer_of(leaves_out.trainer).steps == 0);
    CHECK(given(leaves_out.trainer) == late);
    // Who was refused may go on with what the checkpoint asks for.
    Rank refused({"ddp", 1}, world);
    refused.trainer.set_optimizer(own_adamw());
    CHECK(message_of([&] { refused.trainer.load(folder.path.string()); },
                     ErrorCode::checkpoint_mismatch)
              .find("of the optimizer adamw") != std::string::npos);
    CHECK(given(refused.trainer) == "it throws nothing");
  });
}

TEST_CASE("what is wrong with a program's optimizer or learning rate is said before it is used") {
  run_ranks(1, [](const std::shared_ptr<World>& world) {
    Rank rank({"ddp", 1}, world);
    rank.initialize();
    auto refused = [&](const std::function<void(OwnOptimizer&)>& change) {
      OwnOptimizer own = own_adamw();
      change(own);
      return message_of([&] { rank.trainer.set_optimizer(std::move(own)); }, ErrorCode::conflict);
    };
    CHECK(refused([](OwnOptimizer& own) { own.step = {}; }) ==
          "Trainer::set_optimizer() got an optimizer without a step");
    CHECK(refused([](OwnOptimizer& own) { own.name = "My Adam"; }) ==
          "Trainer::set_optimizer() got an optimizer with the name \"My Adam\"");
    for (const char* state : {"buffer", "exp_avg", "m@1", ""})
      CHECK(refused([&](OwnOptimizer& own) { own.states = {"exp_avg", state}; }) ==
            "Trainer::set_optimizer() got the state \"" + std::string(state) +
                "\" of the optimizer own_adamw");
    for (const double rate : {-1e-3, std::numeric_limits<double>::quiet_NaN(),
                              std::numeric_limits<double>::infinity()}) {
      rank.trainer.set_learning_rate([rate](int64_t) { return rate; });
      CHECK(message_of([&] { rank.step(); }, ErrorCode::out_of_range)
                .starts_with("the learning rate of step 0 is "));
    }
    rank.trainer.set_learning_rate([](int64_t step) { return 1e-2 * static_cast<double>(step); });
    CHECK(rank.step().lr == 0);
    CHECK(rank.step().lr == 1e-2);
    CHECK(refused([](OwnOptimizer&) {}) ==
          "Trainer::set_optimizer() got an optimizer after the run had begun");
  });
}

}  // namespace own_optimizer_test
