// my_strategy: a strategy of your own. As it stands it shards parameters over all data-parallel ranks; change what it plans.
#include <meshwright/plugin_main.h>

#include <array>

namespace {

using namespace meshwright;

// Each option shows up in `meshwright plugins inspect`, is checked in the configuration, and is read with config.own.get_...().
constexpr std::array kOptions = {
    bool_option("reshard_after_forward", true, "Free gathered parameters after forward."),
    int_option("prefetch_depth", "1", 0, "Units gathered ahead in backward."),
};

class MyStrategy final : public Strategy {
 public:
  // Rules between options. Report all of them, each with a setting that works.
  void validate(const StrategyConfig& config, Diagnostics& diagnostics) const override {
    if (config.own.get_int("prefetch_depth") > 0 && !config.own.get_bool("reshard_after_forward"))
      diagnostics.warning("prefetch_depth has no effect with reshard_after_forward = false");
  }

  // Hook 1: sizes and world to a mesh.
  MeshPlan plan_mesh(const MeshRequest& request) const override {
    constexpr std::array<std::string_view, 1> kRefused = {"ep"};
    refuse_sizes(request, "my_strategy", kRefused);
    return plan_sharded_mesh(request);
  }

  // What a layout costs, for `meshwright plan`.
  Footprint footprint(const FootprintRequest& request) const override {
    ShardingPolicy policy;
    policy.reshard_after_forward = request.config.own.get_bool("reshard_after_forward");
    policy.prefetch_depth = request.config.own.get_int("prefetch_depth");
    return fully_sharded_footprint(request, policy);
  }
};

constexpr std::array kStrategies = {
    describe<MyStrategy>({.name = "my_strategy", .summary = "Describe it in one line", .options = kOptions}),
};

}  // namespace

MESHWRIGHT_PLUGIN("my_strategy", "0.1.0", "Your name", "Apache-2.0", "What this plugin is for", kStrategies)
