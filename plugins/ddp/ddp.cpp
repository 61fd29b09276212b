// ddp: every rank holds the whole model; gradients are all-reduced in buckets. No mesh.
#include <array>

#include "meshwright/plugin_main.h"
#include "meshwright/typed_options.h"

namespace {

using namespace meshwright;

struct Own {
  bool broadcast_buffers, find_unused_parameters, static_graph;
  double bucket_cap_mb;
  bool gradient_as_bucket_view;
  std::string backend;
};
constexpr auto kOptions = typed_options<Own>(
    field(&Own::broadcast_buffers,
          bool_option("broadcast_buffers", false,
                      "Broadcast the buffers of rank 0 before each forward.")),
    field(&Own::find_unused_parameters,
          bool_option("find_unused_parameters", false,
                      "Look for parameters without a gradient after each forward; without it such "
                      "a parameter is an error.")),
    field(&Own::static_graph,
          bool_option("static_graph", false,
                      "The set of used parameters never changes after the first step.")),
    field(&Own::bucket_cap_mb,
          with_flags(number_option("bucket_cap_mb", "25", 0,
                                   "Size of a gradient bucket in MiB; the first one is 1 MiB at "
                                   "most."),
                     MESHWRIGHT_OPEN_MIN)),
    field(&Own::gradient_as_bucket_view,
          bool_option("gradient_as_bucket_view", true,
                      "Gradients are views of the buckets: no copy.")),
    field(&Own::backend, backend_option()));

class Ddp final : public Strategy {
 public:
  void validate(const StrategyConfig& config, Diagnostics& diagnostics) const override {
    auto refuse = [&](const char* key, const std::string& why, const char* instead) {
      diagnostics.add(option_error(config.distributed(), key, ErrorCode::option_refused,
                                   "ddp " + why, instead));
    };
    if (config.sequence_parallel())
      refuse("sequence_parallel",
             "has no tensor parallelism, so there is nothing to run sequence-parallel", "false");
    if (config.enable_async_tensor_parallel())
      refuse("enable_async_tensor_parallel", "has no tensor parallelism to overlap", "false");
    if (config.tp_plan().kind != TpPlanChoice::Kind::automatic)
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
    const Options& table = request.config.own();
    const Own own = kOptions.read(table);
    ReplicatedPolicy policy;
    policy.bucket_bytes = static_cast<int64_t>(own.bucket_cap_mb * 1024 * 1024);
    policy.gradient_as_bucket_view = own.gradient_as_bucket_view;
    policy.broadcast_buffers = own.broadcast_buffers;
    policy.find_unused_parameters = own.find_unused_parameters;
    policy.static_graph = own.static_graph;
    policy.options = {{"find_unused_parameters", kOptions.key(table, &Own::find_unused_parameters)},
                      {"static_graph", kOptions.key(table, &Own::static_graph)}};
    ShardingPlan plan = replicated_plan(request, policy);
    plan.recompute_whole_layers = false;  // semantics 6.1
    return plan;
  }
};

constexpr std::array kStrategies = {
    describe<Ddp>({.name = "ddp",
                   .summary = "Replicas with bucketed, overlapped gradient all-reduce",
                   .options = kOptions.declared}),
};

}  // namespace

MESHWRIGHT_PLUGIN("ddp", MESHWRIGHT_VERSION, "The Meshwright authors", "Apache-2.0",
                  "Distributed data parallel", kStrategies)
