// diloco: replicas along dp_replicate train by themselves, sharded each over its own ranks, and
// meet every `sync_every` steps. Between them a byte is sent once a round in place of once a step,
// which is what slow links between sites allow.
//
// local_sgd is the same without an outer optimizer: the mean of all replicas is where they go on.
//
// The planning half: jobs are planned without LibTorch. outer.cpp is the one that runs.
#include <meshwright/plugin_main.h>
#include <meshwright/sharded_strategy.h>

#include <array>

#include "options.h"

namespace {

using namespace meshwright;

// What both have in common.
class Rounds : public ShardedStrategy {
 public:
  void validate(const StrategyConfig& config, Diagnostics& diagnostics) const override {
    ShardedStrategy::validate(config, diagnostics);
    if (config.main_dtype())
      diagnostics.add(Error(ErrorCode::conflict,
                            "replicas meet in the weights that the model holds, but "
                            "optimizer.main_dtype keeps finer ones beside them, which the mean "
                            "would lose")
                          .key("optimizer.main_dtype")
                          .help("leave optimizer.main_dtype out and set model.torch_dtype = "
                                "\"float32\""));
  }

  MeshPlan plan_mesh(const MeshRequest& request) const override {
    constexpr std::array<std::string_view, 2> kRefused = {"ep", "pp"};
    refuse_sizes(request, name(), kRefused);
    MeshPlan plan = plan_sharded_mesh(request, /*alone=*/true);
    if (plan.device_mesh->size("dp_replicate") == 1)
      plan.notices.push_back(
          std::string(name()) +
          ": dp_replicate_size = 1, so there is one replica, which meets nobody");
    return plan;
  }

  ShardingPlan plan_sharding(const ShardingRequest& request) const override {
    ShardingPlan plan = ShardedStrategy::plan_sharding(request);
    int64_t trained = 0;
    for (const UnitCost& unit : footprint_of(request, plan).units) trained += unit.updated;
    const int64_t floats = trained * dtype_size(DType::float32);
    OwnCost& own = plan.own_cost.emplace();
    own.bytes.optimizer = 2 * floats;  // outer weights and momentum
    own.bytes.transient = floats;      // their mean
    own.schedule = {{.phase = Communication::Phase::update,
                     .axis = "dp_replicate",
                     .op = "all_reduce",
                     .ranks = request.mesh.device_mesh->size("dp_replicate"),
                     .count = 1,
                     .payload = floats,
                     .every = diloco::policy_of(request.config.own()).sync_every}};
    return plan;
  }

 protected:
  ShardingPolicy sharding_policy(const StrategyConfig&) const override {
    ShardingPolicy policy;
    policy.independent_replicas = true;
    return policy;
  }
  virtual const char* name() const = 0;
};

class Diloco final : public Rounds {
  const char* name() const override { return "diloco"; }
};

class LocalSgd final : public Rounds {
  const char* name() const override { return "local_sgd"; }
};

constexpr std::array kStrategies = {
    describe<Diloco>({.name = "diloco",
                      .summary =
                          "Replicas that train by themselves and meet every some steps in an "
                          "outer Nesterov step",
                      .options = diloco::kDilocoOptions.declared}),
    describe<LocalSgd>({.name = "local_sgd",
                        .summary = "Replicas that train by themselves and meet every some steps in "
                                   "their mean",
                        .options = diloco::kLocalSgdOptions.declared}),
};

}  // namespace

MESHWRIGHT_PLUGIN("diloco", "1.0.0", "Meshwright examples", "Apache-2.0",
                  "Local steps, and an outer step now and then (Douillard et al. 2023)",
                  kStrategies)
