// zero: DeepSpeed's three stages (Rajbhandari et al. 2020) as a strategy. Each parameter, gradient
// and optimizer state is held whole or shared out over the data-parallel ranks; the SDK executes
// the plan.
#include <meshwright/plugin_main.h>
#include <meshwright/typed_options.h>

#include <array>
#include <string_view>

namespace mw = meshwright;

namespace {

struct ZeroOptions {
  int64_t stage;
};
constexpr auto kOptions = mw::typed_options<ZeroOptions>(mw::field(
    &ZeroOptions::stage,
    mw::int_option(
        "stage", "2", 0,
        "What ranks share out: 1 the optimizer's state, 2 gradients too, 3 weights too.")));

class Zero final : public mw::Strategy {
 public:
  void validate(const mw::StrategyConfig& config, mw::Diagnostics& diagnostics) const override {
    if (kOptions.read(config.own()).stage > 3)
      diagnostics.add(mw::option_error(config.own(), "stage", mw::ErrorCode::out_of_range,
                                       "there are stages 0 to 3", "3"));
  }

  // Flat buffers are not cut over stages of a pipeline, nor over ranks that share experts.
  mw::MeshPlan plan_mesh(const mw::MeshRequest& request) const override {
    constexpr std::array<std::string_view, 2> kNot = {"pp", "ep"};
    mw::refuse_sizes(request, "zero", kNot);
    return mw::plan_sharded_mesh(request);
  }

  mw::ShardingPlan plan_sharding(const mw::ShardingRequest& request) const override {
    mw::ShardingPolicy policy;
    policy.layout = mw::ShardLayout::flat;
    policy.level = static_cast<int>(kOptions.read(request.config.own()).stage);
    return mw::flat_plan(request, policy);
  }
};

constexpr std::array kStrategies = {mw::describe<Zero>(
    {.name = "zero", .summary = "ZeRO, stages 1 to 3", .options = kOptions.declared})};

}  // namespace

MESHWRIGHT_PLUGIN("zero", MESHWRIGHT_PLUGIN_VERSION, "Your name", "Apache-2.0",
                  "A strategy in 60 lines", kStrategies)
