// The run-time contract of units (semantics 3.4), of the replicated model (semantics 5) and of the
// norm (semantics 8.3), case by case.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <mutex>

#include "meshwright/error.h"
#include "meshwright/parallel/collectives.h"
#include "meshwright/parallel/gradients.h"
#include "meshwright/parallel/replicated_model.h"
#include "meshwright/parallel/sharded_units.h"
#include "meshwright/parallel/testing.h"
#include "tiny_model.h"

namespace contract_test {

using namespace meshwright;
using at::Tensor;

namespace {

const MixedPrecision kSingle{DType::float32, DType::float32, DType::float32, true};

struct BagImpl : torch::nn::Module {  // parameters of any shapes
  explicit BagImpl(const std::vector<std::vector<int64_t>>& shapes) {
    for (size_t i = 0; i < shapes.size(); ++i)
      register_parameter(
          "p" + std::to_string(i),
          at::arange(c10::multiply_integers(shapes[i]), at::kFloat).view(shapes[i]) + 1);
  }
  Tensor forward(const Tensor& x) {
    Tensor sum = x;
    for (const Tensor& p : parameters())
      sum = sum + (p.to(x.scalar_type()) * p.to(x.scalar_type())).sum();
    return sum;
  }
};
MESHWRIGHT_MODULE(Bag);

UnitSpec root_unit(torch::nn::Module& module) {
  UnitSpec unit;
  unit.name = "root";
  unit.module = &module;
  unit.reshard_after_forward = true;
  for (auto& item : module.named_parameters())
    unit.parameters.emplace_back(item.key(), item.value());
  return unit;
}

std::unique_ptr<ParallelModel> shard(torch::nn::Module& module,
                                     const std::shared_ptr<torch::nn::Module>& owner,
                                     const std::shared_ptr<World>& world,
                                     ShardingPolicy policy = {}) {
  ShardGroups shards;
  shards.shard = world->everyone();
  shards.shard_axis = "dp_shard";
  MixedPrecision& mp = policy.precision.mp;
  if (mp.param == DType::bfloat16 && mp.output == DType::bfloat16 && mp.reduce == DType::float32)
    mp = kSingle;
  return shard_model(owner, {root_unit(module)}, policy, shards, world);
}

std::string message_of(const std::function<void()>& body, ErrorCode code) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.message();
  }
  FAIL("nothing was thrown");
  return "";
}

}  // namespace

TEST_CASE("rows are shared out as torch.chunk does, and gathered again without padding") {
  struct Row {
    int64_t rows, ranks;
    std::vector<int64_t> held;
  };
  for (const Row& row : {Row{10, 4, {3, 3, 3, 1}}, Row{5, 4, {2, 2, 1, 0}}, Row{1, 4, {1, 0, 0, 0}},
                         Row{8, 2, {4, 4}}, Row{3, 3, {1, 1, 1}}}) {
    CAPTURE(row.rows);
    std::mutex mutex;
    run_ranks(row.ranks, [&](const std::shared_ptr<World>& world) {
      Bag bag(std::vector<std::vector<int64_t>>{{row.rows, 3}, {2}});
      Tensor before = bag->parameters()[0].detach().clone();
      auto model = shard(*bag, bag.ptr(), world);
      const ParallelParameter& p = model->parameters()[0];
      Tensor whole = model->full_tensor("p0"), there = to_cpu(*model, p);
      std::lock_guard lock(mutex);
      auto r = static_cast<size_t>(world->rank());
      CHECK(p.local.size(0) == row.held[r]);
      CHECK(p.local.size(1) == 3);
      CHECK(whole.equal(before));
      CHECK(there.equal(before));
      if (row.held[r] > 0) CHECK(p.local.equal(before.narrow(0, p.region.offsets[0], row.held[r])));
      CHECK(p.placement ==
            std::vector<std::pair<std::string, std::string>>{{"dp_shard", "shard(0)"}});
    });
  }
}

TEST_CASE("to_cpu gives tensors on the CPU, anything else as it is, and refuses other devices") {
  const Tensor there = at::ones({2});
  CHECK(to_cpu(there).is_same(there));
  CHECK(!to_cpu(Tensor()).defined());
  CHECK(to_cpu(7) == 7);
  CHECK(to_cpu(std::string("words")) == "words");
  try {
    to_cpu(at::ones({2}, at::kMeta));
    FAIL("a tensor without values was taken");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::device_unavailable);
    CHECK(error.message().find("meta") != std::string::npos);
  }
}

TEST_CASE("a freed parameter used outside of its unit is an error that names it") {
  run_ranks(2, [](const std::shared_ptr<World>& world) {
    Bag bag(std::vector<std::vector<int64_t>>{{4, 3}, {5}});
    auto model = shard(*bag, bag.ptr(), world);
    Tensor p = bag->parameters()[1];
    for (const std::function<void()>& use :
         {std::function<void()>([&] { (void)(p + 1); }),
          std::function<void()>([&] { (void)p.sum(); }),
          std::function<void()>([&] { (void)p.data_ptr<float>(); }),
          std::function<void()>([&] { (void)p.narrow(0, 1, 2).clone(); }),
          std::function<void()>([&] { (void)bag->parameters()[0].t().matmul(at::ones({4})); })}) {
      std::string what;
      try {
        use();
      } catch (const std::exception& e) {
        what = e.what();
      }
      CHECK(what.find("was used outside its unit") != std::string::npos);
      CHECK((what.find("parameter p1") != std::string::npos ||
             what.find("parameter p0") != std::string::npos));
    }
    double sum = 0;
    model->summon_full_parameters([&] { sum = p.sum().item<double>(); });
    CHECK(sum == 15);
    CHECK_THROWS(model->summon_full_parameters([&] { throw std::runtime_error("x"); }));
    CHECK_THROWS((void)p.sum());
  });
}

TEST_CASE("a step that an exception cut short leaves a model that can go on") {
  run_ranks(2, [](const std::shared_ptr<World>& world) {
    Bag bag(std::vector<std::vector<int64_t>>{{4, 3}, {5}});
    auto model = shard(*bag, bag.ptr(), world);
    auto step = [&](bool broken) {
      model->begin_step();
      model->begin_micro_batch(GradientSync::reduce);
      Tensor out = bag(at::ones({}));
      if (broken) throw std::runtime_error("x");
      out.backward();
      model->end_step();
      return model->clip_grad_norm(0);
    };
    double expected = step(false);
    CHECK_THROWS(step(true));
    CHECK(step(false) == expected);
  });
}

TEST_CASE("mixed precision: dtypes of parameters, gradients, inputs and outputs") {
  run_ranks(2, [](const std::shared_ptr<World>& world) {
    for (bool replicated : {false, true}) {
      Bag bag(std::vector<std::vector<int64_t>>{{4, 3}, {5}});
      MixedPrecision mp{DType::bfloat16, DType::float32, DType::float32, true};
      std::unique_ptr<ParallelModel> model;
      at::ScalarType seen = at::kDouble;
      if (replicated) {
        ReplicatedPolicy policy;
        policy.mp = mp;
        model = replicate_model(bag.ptr(), policy, world->everyone(), world);
      } else {
        ShardingPolicy policy;
        policy.precision.mp = mp;
        model = shard(*bag, bag.ptr(), world, policy);
      }
      bag->before_forward.push_back(
          [&](torch::nn::Module&, TensorRefs& inputs) { seen = inputs.at(0)->scalar_type(); });
      for (bool last : {false, true}) {
        if (!last) model->begin_step();
        model->begin_micro_batch(last ? GradientSync::reduce : GradientSync::accumulate);
        Tensor out = bag(at::ones({1}));
        CHECK((seen == at::kBFloat16));
        CHECK((out.scalar_type() == at::kFloat));
        CHECK((bag->parameters()[0].scalar_type() == at::kBFloat16));
        out.sum().backward();
      }
      model->end_step();
      for (const FlatParameterGroup& group : model->update_groups()) {
        CHECK((group.values.scalar_type() == at::kFloat));
        CHECK((group.grads.scalar_type() == at::kFloat));
      }
      // d/dp of sum p^2 is 2p, twice.
      for (const ParallelParameter& p : model->parameters())
        if (p.grad.numel() > 0) CHECK((p.grad - 4 * p.local).abs().max().item<double>() == 0);
    }
  });
}

TEST_CASE("what is frozen is cast when others than the optimizer wrote it, and only then") {
  using By = ValuesWritten::By;
  // Of ddp (-1) and of the levels that keep parameters whole.
  for (const int level : {-1, 1, 2})
    run_ranks(2, [&](const std::shared_ptr<World>& world) {
      CAPTURE(level);
      Bag bag(std::vector<std::vector<int64_t>>{{4, 3}, {5}});
      Tensor frozen = bag->parameters()[1];
      frozen.set_requires_grad(false);
      const MixedPrecision mp{DType::bfloat16, DType::float32, DType::float32, true};
      std::unique_ptr<ParallelModel> model;
      if (level < 0) {
        ReplicatedPolicy policy;
        policy.mp = mp;
        model = replicate_model(bag.ptr(), policy, world->everyone(), world);
      } else {
        ShardingPolicy policy;
        policy.layout = ShardLayout::flat;
        policy.level = level;
        policy.reduction.every_micro_batch = level == 2;
        policy.precision.mp = mp;
        model = shard(*bag, bag.ptr(), world, policy);
      }
      auto change = [&](double was, double is) {  // the copy that computes
        c10::NoGradGuard no_grad;
        model->summon_full_parameters([&] {
          CHECK((frozen.scalar_type() == at::kBFloat16));
          CHECK(frozen.eq(was).all().item<bool>());
          frozen.fill_(is);
        });
      };
      auto write = [&](double value) {
        c10::NoGradGuard no_grad;
        for (const ParallelParameter& p : model->parameters())
          if (p.name == "p1") p.local.fill_(value);
      };
      write(2);
      model->after_optimizer_step();
      change(2, 64);  // a value that no cast would bring
      model->values_written({By::optimizer, 1});
      model->after_optimizer_step();
      change(64, 32);
      write(5);
      model->values_written({By::weights, 0});
      model->after_optimizer_step();
      change(5, 16);
      model->values_written({By::optimizer, 2});
      model->after_optimizer_step();
      change(16, 8);
      model->after_optimizer_step();
      change(5, 5);
    });
}

TEST_CASE(
    "parameters without a gradient: an error that names them, or zeros when asked to look for "
    "them") {
  struct HalfImpl : torch::nn::Module {
    torch::nn::Linear used{nullptr}, spare{nullptr};
    bool both = false;
    HalfImpl() {
      used = register_module("used", torch::nn::Linear(2, 2));
      spare = register_module("spare", torch::nn::Linear(2, 2));
    }
    Tensor forward(const Tensor& x) { return both ? spare(used(x)) : used(x); }
  };
  run_ranks(2, [](const std::shared_ptr<World>& world) {
    auto step = [&](ReplicatedPolicy policy, bool second_differs = false) {
      auto half = std::make_shared<HalfImpl>();  // a plain module: no hooks needed
      policy.mp = kSingle;
      auto model = replicate_model(half, policy, world->everyone(), world);
      for (int i = 0; i < (second_differs ? 2 : 1); ++i) {
        half->both = i == 1;
        model->begin_step();
        model->begin_micro_batch(GradientSync::reduce);
        half->forward(at::ones({1, 2})).sum().backward();
        model->end_step();
      }
      return model->parameters()[2].grad.abs().sum().item<double>();
    };
    std::string what = message_of([&] { step({}); }, ErrorCode::unused_parameter);
    CHECK(what.find("spare.weight") != std::string::npos);
    CHECK(what.find("used.weight") == std::string::npos);
    ReplicatedPolicy find;
    find.find_unused_parameters = true;
    CHECK(step(find) == 0);
    ReplicatedPolicy fixed;
    fixed.static_graph = true;
    CHECK(step(fixed) == 0);
    CHECK(message_of([&] { step(fixed, true); }, ErrorCode::unused_parameter)
              .find("changed after the first step") != std::string::npos);
  });
}

TEST_CASE("rank 0's parameters and buffers reach all; buffers again before each step when asked") {
  struct StatefulImpl : torch::nn::Module {
    Tensor weight, counter;
    StatefulImpl() {
      weight = register_parameter("weight", at::zeros({3}));
      counter = register_buffer("counter", at::zeros({1}));
    }
  };
  for (bool each : {false, true})
    run_ranks(3, [&](const std::shared_ptr<World>& world) {
      auto module = std::make_shared<StatefulImpl>();
      {
        c10::NoGradGuard no_grad;
        module->weight.fill_(static_cast<double>(world->rank() + 5));
        module->counter.fill_(static_cast<double>(world->rank() + 7));
      }
      ReplicatedPolicy policy;
      policy.mp = kSingle;
      policy.broadcast_buffers = each;
      auto model = replicate_model(module, policy, world->everyone(), world);
      CHECK(module->weight.sum().item<double>() == 15);
      CHECK(module->counter.item<double>() == 7);
      module->counter.fill_(static_cast<double>(world->rank()));
      model->begin_step();
      CHECK(module->counter.item<double>() == (each ? 0 : static_cast<double>(world->rank())));
    });
}

TEST_CASE("modules that cannot be sharded are refused with what to change") {
  auto world = World::single();
  auto plain = std::make_shared<torch::nn::LinearImpl>(2, 2);
  ShardingPolicy policy;
  ShardGroups shards;
  shards.shard = world->everyone();
  policy.precision.mp = kSingle;
  CHECK(message_of([&] { shard_model(plain, {root_unit(*plain)}, policy, shards, world); },
                   ErrorCode::bad_module)
            .find("without hooks") != std::string::npos);
  Bag scalar(std::vector<std::vector<int64_t>>{{}});
  CHECK(message_of([&] { shard_model(scalar.ptr(), {root_unit(*scalar)}, policy, shards, world); },
                   ErrorCode::bad_module)
            .find("p0") != std::string::npos);
  Bag twice(std::vector<std::vector<int64_t>>{{2}});
  CHECK(message_of(
            [&] {
              shard_model(twice.ptr(), {root_unit(*twice), root_unit(*twice)}, policy, shards,
                          world);
            },
            ErrorCode::bad_module)
            .find("two units") != std::string::npos);
  const ReplicatedPolicy low;
  CHECK(message_of([&] { replicate_model(plain, low, world->everyone(), world); },
                   ErrorCode::bad_module)
            .find("no hooks") != std::string::npos);
}

TEST_CASE("the norm counts every gradient once, over the axes that cut it") {
  // Two sets (3) and (4) clipped to 1: norm 5, factor 0.19999996.
  Tensor a = at::full({1}, 3.0), b = at::full({1}, 4.0);
  CHECK(clip_gradients({{{a}, {}}, {{b}, {}}}, 1, 1, at::kCPU) == 5);
  CHECK(std::abs(a.item<double>() / 3 - 0.19999996) < 1e-8);
  // Replicated over tp = 2 with 3, and a sharded one of 4 on one rank and 0 on the other: 5 on
  // both.
  run_ranks(2, [](const std::shared_ptr<World>& world) {
    Tensor both = at::full({1}, 3.0), cut = at::full({1}, world->rank() == 0 ? 4.0 : 0.0),
           none = at::zeros({0});
    CHECK(clip_gradients({{{both}, {}}, {{cut}, {world->everyone()}}}, 0, 1, at::kCPU) == 5);
    CHECK(both.item<double>() == 3);
    // A rank that holds nothing of a set still takes part.
    CHECK(clip_gradients({{{world->rank() == 0 ? both : none}, {world->everyone()}}}, 0, 2,
                         at::kCPU) == 6);
  });
  Tensor infinite = at::full({1}, INFINITY);
  CHECK(std::isinf(clip_gradients({{{infinite}, {}}}, 1, 1, at::kCPU)));
}

}  // namespace contract_test
