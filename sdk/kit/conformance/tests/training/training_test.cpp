// Strategies that train wrongly in one way each: the kit's training case says what it is.
#include <array>
#include <numeric>
#include <stdexcept>

#include "meshwright/nn/attention.h"
#include "meshwright/parallel/parallelize.h"
#include "meshwright/parallel/replicated_model.h"
#include "meshwright/plugin_main.h"
#include "meshwright/sharded_strategy.h"
#include "mutants.h"
#include "sdk/base/shared_schemas.h"

// After LibTorch, which has a CHECK of its own.
#include <doctest/doctest.h>

using namespace meshwright;

namespace {

enum class Way : uint8_t { right, apart, throws, nothing, refuses };
Way way = Way::right;

class Trains final : public Strategy {
 public:
  MeshPlan plan_mesh(const MeshRequest& request) const override {
    MeshPlan plan;
    plan.dp = request.world_size;
    return plan;
  }
  std::unique_ptr<ParallelModel> parallelize(ParallelizeRequest& request) override {
    if (way == Way::throws) throw std::runtime_error("it fell over");
    if (way == Way::nothing) return nullptr;
    if (way == Way::refuses) throw Error(ErrorCode::bad_module, "not this module");
    apply_activation_checkpointing(request, /*whole_layers=*/true);
    ReplicatedPolicy policy;
    policy.mp = request.config.shared().mp;
    std::shared_ptr<Group> group = way == Way::apart
                                       ? request.world->group("apart", {request.world->rank()})
                                       : request.world->everyone();
    return replicate_model(request.model, policy, group, request.world);
  }
};

template <class Kind>
std::string found(const char* until = nullptr) {
  static const meshwright_strategy about = describe<Kind>({.name = "trains",
                                                           .aliases = nullptr,
                                                           .summary = "For tests",
                                                           .options_table = nullptr,
                                                           .options = {}});
  return mutants_test::kit_says({.strategy = &about}, until);
}

std::string found(Way how, const char* until = nullptr) {
  way = how;
  return found<Trains>(until);
}

// Leaves training to the SDK.
class Executed final : public Strategy {
 public:
  MeshPlan plan_mesh(const MeshRequest&) const override { return {}; }
};

// Ranks that share samples.
class Shards : public Strategy {
 public:
  MeshPlan plan_mesh(const MeshRequest& request) const override {
    return plan_sharded_mesh(request);
  }
  ShardingPlan plan_sharding(const ShardingRequest& request) const override {
    return fully_sharded_plan(request, {});
  }
};
// Its model knows nothing of the axis that its mesh has.
class Forgets final : public Shards {
 public:
  std::unique_ptr<ParallelModel> parallelize(ParallelizeRequest& request) override {
    if (request.config.shared().sizes.cp == 1) return Shards::parallelize(request);
    ReplicatedPolicy policy;
    policy.mp = request.config.shared().mp;
    return replicate_model(request.model, policy, request.world->everyone(), request.world);
  }
};
// Every rank attends to its own tokens alone.
class LooksAway final : public Shards {
 public:
  std::unique_ptr<ParallelModel> parallelize(ParallelizeRequest& request) override {
    std::unique_ptr<ParallelModel> model = Shards::parallelize(request);
    for (auto& [name, core] : find_attention_cores(*request.model)) core->set_method(nullptr);
    return model;
  }
};
class Refuses final : public Shards {
 public:
  MeshPlan plan_mesh(const MeshRequest& request) const override {
    constexpr std::array<std::string_view, 1> kNoContext = {"cp"};
    refuse_sizes(request, "trains", kNoContext);
    return plan_sharded_mesh(request);
  }
};

}  // namespace

TEST_CASE("a plan is not run without a model or the ranks that hold it") {
  Executed strategy;
  ModelOutline outline;
  MeshPlan mesh;
  TpPlan tp;
  StrategyConfig config;
  ParallelizeRequest request{nullptr, outline, mesh, tp, config, nullptr};
  try {
    strategy.parallelize(request);
    FAIL("it ran");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::not_in_release);
    CHECK(error.message().find("the request has no model") != std::string::npos);
  }
}

TEST_CASE("the kit finds nothing in a strategy that trains, and what is wrong in others") {
  CHECK(found(Way::right).starts_with("note: trained on 1, 2, 3 ranks as a plain loop"));
  const std::string apart = found(Way::apart, "3 ranks: rank 2:");
  CHECK(apart.find("1 rank:") == std::string::npos);
  CHECK(apart.find("2 ranks: rank 0: step 1: the gradient of ") != std::string::npos);
  CHECK(apart.find("3 ranks: rank 2:") != std::string::npos);
  for (const auto& [wrong, says] :
       {std::pair(Way::throws,
                  "1 rank: rank 0: error[E0421]: an exception of type std::runtime_error left the "
                  "plugin: it fell over (plugin trains, in parallelize, on rank 0)"),
        std::pair(Way::nothing, "2 ranks: rank 0: parallelize returned nothing"),
        std::pair(Way::refuses, "1 rank: rank 0: error[E0318]: not this module")})
    CHECK(found(wrong, says).find(says) != std::string::npos);
}

TEST_CASE("the kit holds ranks that share samples to the plain loop, where there are any") {
  // What mutants_test.cpp makes its mutants of takes them in all layouts, and says so.
  CHECK(
      found<Refuses>() ==
      "note: trained on 1, 2, 3 ranks as a plain loop; with activation_checkpointing = full on 2 "
      "ranks; cp_size = 2 is refused (E0306); with dp_replicate_size = 2 on 4 ranks; with "
      "mp_policy.param_dtype = bfloat16 on 2 ranks; with pp_size = 2 on 2, 4 ranks; with tp_size = "
      "2 on 2, 4 ranks\n");
  const std::string forgets = found<Forgets>("2 ranks, cp_size 2, all_gather: rank 0: "),
                    away = found<LooksAway>("2 ranks, cp_size 2, ulysses: rank 0: ");
  CHECK(forgets.find("3 ranks: ") == std::string::npos);
  CHECK(forgets.find(
            "2 ranks, cp_size 2, all_gather: rank 0: error[E0423]: the strategy trains planned "
            "cp_size = 2, but its parallelize() gave the model no context_parallel()") !=
        std::string::npos);
  INFO(away);
  for (const char* method : {"all_gather", "ring", "ulysses"})
    CHECK(away.find("2 ranks, cp_size 2, " + std::string(method) +
                    ": rank 0: the loss of step 1 is ") != std::string::npos);
}
