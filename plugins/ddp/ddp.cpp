// ddp: every rank holds the whole model; gradients are all-reduced in buckets. No mesh.
#include <array>

#include "meshwright/plugin_main.h"

namespace {

using namespace meshwright;

constexpr meshwright_option bucket_cap() {
  meshwright_option o = option("bucket_cap_mb", MESHWRIGHT_NUMBER, "25",
                               "Size of a gradient bucket in MiB; the first one is 1 MiB at most.");
  o.min = 0;
  o.flags = MESHWRIGHT_OPEN_MIN | MESHWRIGHT_NO_MAX;
  return o;
}
constexpr std::array kOptions = {
    bool_option("broadcast_buffers", false, "Broadcast the buffers of rank 0 before each forward."),
    bool_option("find_unused_parameters", false,
                "Look for parameters without a gradient after each forward; without it such a "
                "parameter is an error."),
    bool_option("static_graph", false,
                "The set of used parameters never changes after the first step."),
    bucket_cap(),
    bool_option("gradient_as_bucket_view", true, "Gradients are views of the buckets: no copy."),
    backend_option(),
};

class Ddp final : public Strategy {
 public:
  void validate(const StrategyConfig& config, Diagnostics& diagnostics) const override {
    const SharedOptions& shared = config.shared;
    auto refuse = [&](const char* key, const std::string& why, const char* instead) {
      diagnostics.add(option_error(config.shared_values, key, ErrorCode::option_refused,
                                   "ddp " + why, instead));
    };
    if (shared.sequence_parallel)
      refuse("sequence_parallel",
             "has no tensor parallelism, so there is nothing to run sequence-parallel", "false");
    if (shared.enable_async_tensor_parallel)
      refuse("enable_async_tensor_parallel", "has no tensor parallelism to overlap", "false");
    if (shared.tp_plan.kind != TpPlanChoice::Kind::automatic)
      refuse("tp_plan", "has no tensor parallelism to plan", "\"none\"");
  }

  MeshPlan plan_mesh(const MeshRequest& request) const override {
    constexpr std::array<std::string_view, 5> kRefused = {"tp", "pp", "cp", "ep", "dp_replicate"};
    refuse_sizes(request, "ddp", kRefused);
    MeshPlan plan;
    plan.dp = resolve_dp_size(request);
    return plan;
  }

  ShardingPlan plan_sharding(const ShardingRequest& request) const override {
    const Options& own = request.config.own;
    ReplicatedPolicy policy;
    policy.bucket_bytes = static_cast<int64_t>(own.get_number("bucket_cap_mb") * 1024 * 1024);
    policy.gradient_as_bucket_view = own.get_bool("gradient_as_bucket_view");
    policy.broadcast_buffers = own.get_bool("broadcast_buffers");
    policy.find_unused_parameters = own.get_bool("find_unused_parameters");
    policy.static_graph = own.get_bool("static_graph");
    policy.options = own.schema().table;
    ShardingPlan plan = replicated_plan(request, policy);
    plan.recompute_whole_layers = false;  // semantics 6.1
    return plan;
  }
};

constexpr std::array kStrategies = {
    describe<Ddp>({.name = "ddp",
                   .summary = "Replicas with bucketed, overlapped gradient all-reduce",
                   .options = kOptions}),
};

}  // namespace

MESHWRIGHT_PLUGIN("ddp", MESHWRIGHT_VERSION, "The Meshwright authors", "Apache-2.0",
                  "Distributed data parallel", kStrategies)
