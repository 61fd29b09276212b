// ddp: every rank holds the whole model; gradients are all-reduced in buckets. No mesh.
#include <array>

#include "layers.h"
#include "meshwright/activation_bytes.h"
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
constexpr meshwright_option backend() {
  return with_flags(choice_option("backend", nullptr, "nccl|gloo",
                                  "Back end of the group. Not set: dist_env.backend."),
                    MESHWRIGHT_OPTIONAL);
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
    backend(),
};

class Ddp final : public Strategy {
 public:
  void validate(const StrategyConfig& config, Diagnostics& diagnostics) const override {
    const SharedOptions& shared = config.shared;
    auto refuse = [&](const char* key, const std::string& why, const std::string& instead) {
      std::string name = std::string("distributed.") + key;
      diagnostics.add(Error(ErrorCode::option_refused, "ddp " + why)
                          .key(name)
                          .at(config.shared_values.origin(key))
                          .help("set " + name + " = " + instead));
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

  Footprint footprint(const FootprintRequest& request) const override {
    ReplicatedPolicy policy;
    policy.bucket_bytes =
        static_cast<int64_t>(request.config.own.get_number("bucket_cap_mb") * 1024 * 1024);
    policy.gradient_as_bucket_view = request.config.own.get_bool("gradient_as_bucket_view");
    Footprint out = replicated_footprint(request, policy);
    out.bytes.activations = activation_bytes(request, kWholeLayers);
    return out;
  }
};

constexpr std::array kStrategies = {
    describe<Ddp>({.name = "ddp",
                   .summary = "Replicas with bucketed, overlapped gradient all-reduce",
                   .options = kOptions,
                   .capabilities = MESHWRIGHT_CAN_PLAN | MESHWRIGHT_CAN_PARALLELIZE}),
};

}  // namespace

MESHWRIGHT_PLUGIN("ddp", MESHWRIGHT_VERSION, "The Meshwright authors", "Apache-2.0",
                  "Distributed data parallel", kStrategies)
