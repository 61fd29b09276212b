// A plan as it is executed: what it says of frozen parameters is what a step sends, and each rank
// holds the regions that it names.
#include "meshwright/error.h"
#include "meshwright/footprint.h"
#include "meshwright/parallel/parallelize.h"
#include "meshwright/parallel/replicated_model.h"
#include "meshwright/parallel/testing.h"
#include "sdk/base/check_parts.h"
#include "sdk/base/shared_schemas.h"
#include "tiny_model.h"

#include <ATen/ops/empty.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <stdexcept>
#include <type_traits>

// After LibTorch, which has a CHECK of its own.
#include <doctest/doctest.h>

namespace execute_plan_test {

using namespace meshwright;

namespace {

using Rows = std::map<std::pair<std::string, std::string>, std::pair<int64_t, int64_t>>;

Rows sent(World& world) {
  Rows out;
  for (const TrafficCounter::Row& row : world.traffic().rows())
    if (row.axis != "control") out[{row.axis, row.op}] = {row.count, row.bytes};
  return out;
}

std::string text_of(const Rows& rows) {
  std::string out;
  for (const auto& [key, value] : rows)
    out += key.first + " " + key.second + " " + std::to_string(value.first) + " x, " +
           std::to_string(value.second) + " bytes; ";
  return out;
}

enum class How : uint8_t { replicated, rows, flat, flat_level_2, flat_level_1 };

// Throws what differs: an exception of one rank ends all.
void compare(How how, bool whole, const std::shared_ptr<World>& world) {
  tiny::Net net = tiny::make(3, 1);
  auto stays = [](const std::string& name) {
    return name.starts_with("layers.1.") || name.ends_with("mlp.down.weight");
  };
  for (auto& item : net->named_parameters())
    if (stays(item.key())) item.value().set_requires_grad(false);
  StrategyConfig config;
  config.job().frozen_whole = whole;
  config.shared().mp = {DType::float32, DType::float32, DType::float32, true};
  MeshPlan mesh;
  mesh.dp = world->size();
  if (how == How::rows) {
    mesh = plan_sharded_mesh({world->size(), {}, config});
  } else if (how != How::replicated) {
    mesh.device_mesh.emplace(std::vector<MeshAxis>{{"dp", world->size()}});
    mesh.fsdp_axes = {"dp"};
  }
  const TpPlan tp;
  ModelOutline outline = outline_of(*net);
  ParallelizeRequest request{net.ptr(), outline, mesh, tp, config, world};
  const LiveShardingRequest live(request);
  const int level = how == How::flat_level_2 ? 2 : how == How::flat_level_1 ? 1 : 3;
  const ShardingPlan plan = how == How::replicated ? replicated_plan(live)
                            : how == How::rows     ? fully_sharded_plan(live)
                                                   : flat_plan(live, {.level = level});
  std::unique_ptr<ParallelModel> model = execute_plan(request, plan);
  auto step = [&] {
    model->begin_step();
    model->begin_micro_batch(GradientSync::reduce);
    tiny::loss_of(net, tiny::batch(2, static_cast<uint64_t>(world->rank()))).backward();
    model->end_step();
    model->after_optimizer_step();
  };
  step();
  step();  // the order of the units is known from here on
  const Rows before = sent(*world);
  step();
  Rows now = sent(*world), expected;
  for (const auto& [key, value] : before) {
    now[key].first -= value.first;
    now[key].second -= value.second;
  }
  std::erase_if(now, [](const auto& row) { return row.second.first == 0; });
  for (const WireRow& row : footprint_of(live, plan).wire)
    expected[{row.axis, row.op}] = {row.count, row.bytes};
  if (now != expected)
    throw std::runtime_error("sent " + text_of(now) + "planned " + text_of(expected));
  for (const ParallelParameter& p : model->parameters())
    if (stays(p.name) == p.grad.defined())
      throw std::runtime_error(p.name + (p.grad.defined() ? " has" : " has no") + " gradient");
  int64_t frozen = 0, held = 0;
  for (const ParallelParameter& p : model->parameters())
    if (stays(p.name)) {
      frozen += element_count(p.global_shape);
      held += p.local.numel();
    }
  if (whole && held != frozen) throw std::runtime_error("frozen parameters are not whole");
}

// A job of one rank, until it is executed.
struct Alone {
  explicit Alone(tiny::Net made = tiny::make(2, 1)) : net(std::move(made)) {
    config.shared().mp = {DType::float32, DType::float32, DType::float32, true};
    outline = outline_of(*net);
  }
  ParallelizeRequest request() {
    mesh = plan_sharded_mesh({1, {}, config});
    return {net.ptr(), outline, mesh, tp, config, World::single()};
  }
  std::unique_ptr<ParallelModel> execute(
      const std::function<ShardingPlan(const ShardingRequest&)>& plan) {
    ParallelizeRequest wanted = request();
    const LiveShardingRequest live(wanted);
    return execute_plan(wanted, plan(live));
  }
  void step(ParallelModel& model) {
    model.begin_step();
    model.begin_micro_batch(GradientSync::reduce);
    tiny::loss_of(net, tiny::batch(2, 1)).backward();
    model.end_step();
  }
  tiny::Net net;
  StrategyConfig config;
  MeshPlan mesh;
  TpPlan tp;
  ModelOutline outline;
};

// The code, the message and the helps of what `body` throws.
Error error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  throw std::runtime_error("nothing was thrown");
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

ParameterOutline& embedding(ModelOutline& outline) {
  return *std::find_if(outline.parameters.begin(), outline.parameters.end(),
                       [](const ParameterOutline& p) { return p.name == "embed.weight"; });
}

// Says whether it was asked for a plan.
class Planner : public Strategy {
 public:
  MeshPlan plan_mesh(const MeshRequest& request) const override {
    return plan_sharded_mesh(request);
  }
  ShardingPlan plan_sharding(const ShardingRequest& request) const override {
    asked = true;
    return replicated_plan(request);
  }
  mutable bool asked = false;
};

static_assert(!std::is_convertible_v<LiveShardingRequest, ShardingRequest>,
              "a request would outlive what it refers to");
static_assert(std::is_convertible_v<const LiveShardingRequest&, ShardingRequest>);

}  // namespace

TEST_CASE("a step sends what the plan of a partly frozen model says, under every layout") {
  for (How how : {How::replicated, How::rows, How::flat, How::flat_level_2, How::flat_level_1}) {
    CAPTURE(static_cast<int>(how));
    for (bool whole : {false, true}) {
      CAPTURE(whole);
      CHECK_NOTHROW(
          run_ranks(3, [&](const std::shared_ptr<World>& world) { compare(how, whole, world); }));
    }
  }
}

TEST_CASE("one rank runs as a copy unless the plan asks for what copies lack") {
  auto groups = [](const ShardingPolicy& policy) {
    Alone job;
    return job.execute([&](const auto& live) { return fully_sharded_plan(live, policy); })
        ->update_groups()
        .size();
  };
  CHECK(groups({}) == Alone().outline.parameters.size());  // each lies where autograd puts it
  ShardingPolicy unheard;
  unheard.prefetch.chains = unheard.buffers.rotating = true;
  unheard.reduction.average = ReductionPolicy::Average::before_sum;
  unheard.reduction.every_micro_batch = true;
  CHECK(groups(unheard) > 1);

  Alone narrow;
  narrow.net->to(at::kBFloat16);
  narrow.outline = outline_of(*narrow.net);
  ShardingPolicy wide;
  wide.precision.main_weights = wide.precision.main_gradients = DType::float32;
  std::unique_ptr<ParallelModel> model =
      narrow.execute([&](const auto& live) { return fully_sharded_plan(live, wide); });
  narrow.step(*model);
  REQUIRE(model->update_groups().size() == 1);
  CHECK((model->update_groups()[0].values.scalar_type() == at::kFloat));
  CHECK((model->update_groups()[0].grads.scalar_type() == at::kFloat));

  for (bool own : {false, true}) {
    CAPTURE(own);
    ShardingPolicy checked;
    (own ? checked.checks.own : checked.checks.reduced) = true;
    Alone job;
    {
      c10::NoGradGuard no_grad;
      job.net->bias_of_one.fill_(std::numeric_limits<double>::quiet_NaN());
    }
    model = job.execute([&](const auto& live) { return fully_sharded_plan(live, checked); });
    CHECK(error_of([&] {
            job.step(*model);
            model->clip_grad_norm(1);
          }).code() == ErrorCode::nonfinite);
  }

  Alone mixed;
  model = mixed.execute([](const auto& live) {
    ShardingPlan plan = fully_sharded_plan(live);
    plan.units[0].mp = MixedPrecision{DType::bfloat16, DType::float32, DType::float32, true};
    return plan;
  });
  CHECK((mixed.net->layers->ptr(0)->parameters()[0].scalar_type() == at::kBFloat16));
  CHECK((mixed.net->layers->ptr(1)->parameters()[0].scalar_type() == at::kFloat));
}

TEST_CASE("copies have no stages") {
  {
    Alone job;
    ParallelizeRequest wanted = job.request();
    job.config.shared().sizes.pp = 2;
    const LiveShardingRequest live(wanted);
    const ShardingPlan copies = replicated_plan(live);
    const Error error = error_of([&] { execute_plan(wanted, copies); });
    CHECK(error.code() == ErrorCode::not_in_release);
    CHECK(error.key() == "distributed.pp_size");
  }
  Alone job;
  ParallelizeRequest wanted = job.request();
  Planner strategy;
  CHECK(strategy.parallelize(wanted) != nullptr);
  CHECK(strategy.asked);
}

TEST_CASE("the plan that comes with the request is executed, where the live model is as planned") {
  Alone job;
  const ShardingPlan plan = [&] {
    ParallelizeRequest wanted = job.request();
    const LiveShardingRequest live(wanted);
    return replicated_plan(live);
  }();
  for (const bool frozen : {false, true}) {
    CAPTURE(frozen);
    Alone other;
    ParallelizeRequest wanted = other.request();
    wanted.plan = &plan;
    if (frozen) wanted.model->parameters().front().requires_grad_(false);
    Planner strategy;
    CHECK(strategy.parallelize(wanted) != nullptr);
    CHECK(strategy.asked == frozen);
  }
}

TEST_CASE("expert parallelism of another layout than rows is refused") {
  for (How how : {How::replicated, How::flat, How::rows}) {
    CAPTURE(static_cast<int>(how));
    Alone job;
    ParallelizeRequest wanted = job.request();
    const LiveShardingRequest live(wanted);
    const ShardingPlan plan = how == How::replicated ? replicated_plan(live)
                              : how == How::rows     ? fully_sharded_plan(live)
                                                     : flat_plan(live);
    job.config.shared().sizes.ep = 2;
    if (how == How::rows) {
      CHECK(execute_plan(wanted, plan) != nullptr);  // the mesh has no experts to cut
      continue;
    }
    const Error error = error_of([&] { execute_plan(wanted, plan); });
    CHECK(error.code() == ErrorCode::not_in_release);
    CHECK(error.key() == "distributed.ep_size");
    CHECK(!error.helps().empty());
  }
}

TEST_CASE("a parameter of a type that cannot be trained is refused by its name") {
  for (at::ScalarType type : {at::kByte, at::kComplexFloat, at::kFloat8_e4m3fn, at::kLong})
    for (How how : {How::replicated, How::rows, How::flat}) {
      CAPTURE(c10::toString(type));
      CAPTURE(static_cast<int>(how));
      tiny::Net net = tiny::make(2, 1);
      net->register_parameter("odd", at::empty({4}, at::TensorOptions().dtype(type)),
                              /*requires_grad=*/false);
      Alone job(std::move(net));
      const Error error = error_of([&] {
        job.execute([&](const auto& live) {
          return how == How::replicated ? replicated_plan(live)
                 : how == How::rows     ? fully_sharded_plan(live)
                                        : flat_plan(live);
        });
      });
      CHECK(error.code() == ErrorCode::bad_module);
      CHECK(contains(error.message(), "parameter odd "));
      CHECK(!error.helps().empty());
    }
}

TEST_CASE("an outline that is not the model's is refused with what differs") {
  struct Row {
    std::function<void(ModelOutline&)> change;
    std::vector<std::string> parts;
  };
  const std::vector<Row> rows = {
      {[](ModelOutline& o) { embedding(o).shape = {14, 10}; },
       {"embed.weight is [13, 10], but its outline says [14, 10]"}},
      {[](ModelOutline& o) { embedding(o).name = "embedding.weight"; },
       {"its outline does not list embed.weight", "no parameter embedding.weight"}},
      {[](ModelOutline& o) { o.parameters.pop_back(); }, {"its outline does not list head.weight"}},
  };
  for (const Row& row : rows)
    for (bool replicated : {false, true}) {
      Alone job;
      row.change(job.outline);
      const Error error = error_of([&] {
        job.execute([&](const auto& live) {
          return replicated ? replicated_plan(live) : fully_sharded_plan(live);
        });
      });
      CHECK(error.code() == ErrorCode::bad_module);
      CHECK(!error.helps().empty());
      for (const std::string& part : row.parts) CHECK(contains(error.message(), part));
    }
  // A tied weight is listed by one of its names.
  Alone tied(tiny::make(2, 1, 0, /*tied=*/true));
  tied.net->register_parameter("again", tied.net->embed->weight);
  CHECK(tied.execute([](const auto& live) { return fully_sharded_plan(live); }) != nullptr);
  // By hand, where only the layouts are known.
  Alone job;
  embedding(job.outline).shape = {14, 10};
  ParallelizeRequest wanted = job.request();
  const LiveShardingRequest live(wanted);
  const ShardingPlan plan = fully_sharded_plan(live);
  const Error error = error_of([&] {
    shard_model(job.net.ptr(), bind_units(*job.net, job.outline, plan.units), plan.sharding,
                shard_groups(wanted), World::single());
  });
  CHECK(error.code() == ErrorCode::bad_module);
  CHECK(contains(error.message(), "the sizes [14, 10] for embed.weight, the model [13, 10]"));
}

TEST_CASE("copies reduce in the buckets of their plan") {
  run_ranks(2, [](const std::shared_ptr<World>& world) {
    tiny::Net net = tiny::make(2, 1);
    StrategyConfig config;
    config.shared().mp = {DType::float32, DType::float32, DType::float32, true};
    MeshPlan mesh;
    mesh.dp = world->size();
    const TpPlan tp;
    const ModelOutline outline = outline_of(*net);
    ParallelizeRequest request{net.ptr(), outline, mesh, tp, config, world};
    const LiveShardingRequest live(request);
    ReplicatedPolicy small;
    small.first_bucket_bytes = small.bucket_bytes = 900;
    ShardingPlan plan = replicated_plan(live, small);
    const auto buckets = static_cast<int64_t>(plan.buckets.size());
    CHECK(buckets > 2);
    plan.replication.bucket_bytes = plan.replication.first_bucket_bytes = int64_t{1} << 30;
    std::unique_ptr<ParallelModel> model = execute_plan(request, plan);
    const int64_t before = sent(*world)[{"dp", "all_reduce"}].first;
    model->begin_step();
    model->begin_micro_batch(GradientSync::reduce);
    tiny::loss_of(net, tiny::batch(2, 1)).backward();
    model->end_step();
    CHECK(sent(*world)[{"dp", "all_reduce"}].first - before == buckets);
  });
  tiny::Net net = tiny::make(2, 1);
  ReplicatedPolicy policy;
  policy.mp = {DType::float32, DType::float32, DType::float32, true};
  const std::shared_ptr<World> world = World::single();
  CHECK(error_of([&] {
          replicate_model(net.ptr(), policy, world->everyone(), world, nullptr,
                          std::vector<GradientBucket>{{0, 7, {0}}});
        }).code() == ErrorCode::bad_module);
}

}  // namespace execute_plan_test
