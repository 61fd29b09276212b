// Strategies that train wrongly in one way each: the kit's training case says what it is.
#include <doctest/doctest.h>

#include <numeric>
#include <stdexcept>

#include "meshwright/parallel/replicated_model.h"
#include "meshwright/plugin_main.h"
#include "sdk/conformance/conformance.h"

using namespace meshwright;

extern "C" void meshwright_check_training(const meshwright_strategy* about, void* context,
                                          void (*fail)(void*, const char*),
                                          void (*note)(void*, const char*));

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
    ReplicatedPolicy policy;
    policy.mp = request.config.shared.mp;
    std::shared_ptr<Group> group = way == Way::apart
                                       ? request.world->group("apart", {request.world->rank()})
                                       : request.world->everyone();
    return replicate_model(request.model, policy, group, request.world);
  }
};

std::string found(Way how) {
  way = how;
  static const meshwright_strategy about = describe<Trains>({.name = "trains",
                                                             .aliases = nullptr,
                                                             .summary = "For tests",
                                                             .options_table = nullptr,
                                                             .options = {}});
  std::string problems;
  meshwright_check_training(
      &about, &problems,
      [](void* to, const char* text) {
        *static_cast<std::string*>(to) += std::string(text) + "\n";
      },
      [](void* to, const char* text) {
        *static_cast<std::string*>(to) += std::string("note: ") + text + "\n";
      });
  return problems;
}

// Leaves training to the SDK.
class Executed final : public Strategy {
 public:
  MeshPlan plan_mesh(const MeshRequest&) const override { return {}; }
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
  CHECK(found(Way::right) == "note: trained on 1, 2, 3 ranks as a plain loop\n");
  std::string apart = found(Way::apart);
  CHECK(apart.find("1 rank:") == std::string::npos);
  CHECK(apart.find("2 ranks: rank 0: the gradient norm of step 1 is") != std::string::npos);
  CHECK(apart.find("3 ranks: rank 2:") != std::string::npos);
  CHECK(found(Way::throws).find("1 rank: it fell over") != std::string::npos);
  CHECK(found(Way::nothing).find("2 ranks: parallelize returned nothing") != std::string::npos);
  CHECK(found(Way::refuses).find("1 rank: rank 0: error[E0318]: not this module") !=
        std::string::npos);
}
