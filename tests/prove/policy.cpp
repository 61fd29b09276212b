// A strategy that is a policy alone, right or with one fault: nothing of it runs but what the SDK
// makes of its plan.
#include <array>
#include <string>

#include "meshwright/plugin_main.h"
#include "meshwright/sharded_strategy.h"

namespace {

using namespace meshwright;

constexpr std::array kOptions = {
    choice_option("fault", "\"none\"", "none|replicas_apart|rounds", "What is wrong.")};

class OfPolicy final : public ShardedStrategy {
 protected:
  ShardingPolicy sharding_policy(const StrategyConfig& config) const override {
    const std::string fault = config.own().get_string("fault");
    ShardingPolicy out;
    out.precision.mp = config.mp_policy();
    if (fault == "replicas_apart") out.independent_replicas = true;
    // Whatever the job asked for.
    if (fault == "rounds") out.precision.main_gradients = DType::bfloat16;
    return out;
  }
};

constexpr std::array kStrategies = {describe<OfPolicy>(
    {.name = "of_policy", .summary = "Fully sharded, by a policy", .options = kOptions})};

}  // namespace

MESHWRIGHT_PLUGIN("of_policy", "1.0.0", "v", "l", "A policy alone", kStrategies)
