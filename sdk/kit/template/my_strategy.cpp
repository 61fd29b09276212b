// my_strategy: a strategy of your own. As it stands it shards parameters over all data-parallel
// ranks, or over groups of them with copies in between, and trains; change what it plans and how it
// runs.
#include <meshwright/plugin_main.h>
#include <meshwright/typed_options.h>

#include <array>
#include <string>

namespace mw = meshwright;

namespace {

// Each option shows up in `meshwright plugins inspect`, is checked in the configuration, and is a
// member of what kOptions.read() gives.
struct MyOptions {
  enum class Copies : uint8_t { automatic, none };  // in the order of the choices
  bool reshard_after_forward;
  int64_t prefetch_depth;
  Copies copies;
};
constexpr auto kOptions = mw::typed_options<MyOptions>(
    mw::field(&MyOptions::reshard_after_forward,
              mw::bool_option("reshard_after_forward", true,
                              "Free gathered parameters after forward and gather them again for "
                              "backward.")),
    mw::field(&MyOptions::prefetch_depth,
              mw::int_option("prefetch_depth", "1", 0, "Units gathered ahead.")),
    mw::field(&MyOptions::copies,
              mw::choice_option("copies", "\"auto\"", "auto|none",
                                "Whether distributed.dp_replicate_size may ask for copies of the "
                                "shards.")));

class MyStrategy final : public mw::Strategy {
 public:
  // Rules between options that a schema cannot say. Report all of them, each with settings that
  // work.
  void validate(const mw::StrategyConfig& config, mw::Diagnostics& diagnostics) const override {
    const MyOptions own = kOptions.read(config.own());
    if (own.prefetch_depth > 1 && !own.reshard_after_forward)
      diagnostics.add(
          mw::option_error(config.own(), "prefetch_depth", mw::ErrorCode::conflict,
                           "nothing is gathered in backward, so prefetch_depth must be 0 or 1", "1")
              .about("distributed.my_strategy.reshard_after_forward")
              .help("set distributed.my_strategy.reshard_after_forward = true"));
  }

  // Hook 1, pure: sizes and world to a mesh, or an Error with a 3xx code, a key and a setting that
  // works.
  mw::MeshPlan plan_mesh(const mw::MeshRequest& request) const override {
    constexpr std::array<std::string_view, 1> kNoExperts = {"ep"};
    mw::refuse_sizes(request, "my_strategy", kNoExperts);
    int64_t copies = request.config.sizes().dp_replicate;
    const MyOptions own = kOptions.read(request.config.own());
    if (own.copies == MyOptions::Copies::none && copies > 1)
      throw mw::Error(mw::ErrorCode::size_not_supported,
                      "dp_replicate_size is " + std::to_string(copies) + ", but copies = \"none\"")
          .key("distributed.dp_replicate_size")
          .help("set distributed.dp_replicate_size = 1")
          .help("set distributed.my_strategy.copies = \"auto\"");
    return mw::plan_sharded_mesh(
        request);  // or axes of your own: mw::Mesh({{"dp_shard", n}, {"tp", m}})
  }

  // Hook 2, translate_tp_plan, is the same for all strategies unless you override it.

  // The plan that hook 3, parallelize(), executes; pure. It says how the model lies on the ranks, and
  // `meshwright plan` shows what that costs. The SDK executes it, unless you override parallelize()
  // to run a model of your own, as examples/third_party_plugin does.
  mw::ShardingPlan plan_sharding(const mw::ShardingRequest& request) const override {
    const MyOptions own = kOptions.read(request.config.own());
    const int64_t depth = own.prefetch_depth;
    mw::ShardingPolicy policy;
    policy.reshard_after_forward = own.reshard_after_forward;
    policy.prefetch = {
        .enabled = depth > 0, .chains = depth > 1, .forward = depth, .backward = depth};
    return mw::fully_sharded_plan(request, policy);
  }
};

constexpr std::array kStrategies = {
    mw::describe<MyStrategy>(
        {.name = "my_strategy", .summary = "Describe it in one line", .options = kOptions.declared}),
};

}  // namespace

// What the engine may know before it runs any of this: name, version, vendor, license (SPDX),
// summary. The version is that of project() in CMakeLists.txt.
MESHWRIGHT_PLUGIN("my_strategy", MESHWRIGHT_PLUGIN_VERSION, "Your name", "Apache-2.0",
                  "What this plugin is for", kStrategies)
