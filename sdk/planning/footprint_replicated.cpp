#include "footprint_parts.h"
#include "meshwright/error.h"

namespace meshwright {

namespace footprint {

namespace {

Axis axis_named(const ShardingRequest& request, const std::string& name) {
  const Mesh& mesh = *request.mesh.device_mesh;
  return {name, mesh.size(name), mesh.coordinate(request.rank, name)};
}

[[noreturn]] void refuse_mesh(int64_t dp, int64_t cp, const std::string& why) {
  throw Error(ErrorCode::no_such_axis, "replicas all-reduce their gradients over dp " +
                                           std::to_string(dp) + " * cp " + std::to_string(cp) +
                                           " ranks, and " + why)
      .help("set MeshPlan::dp to the number of data-parallel ranks that the mesh has")
      .help(std::string("flatten the data-parallel axes into one: mesh.flatten(\"") +
            (cp > 1 ? "dp_cp" : "dp") + "\", {...})");
}

}  // namespace

Axis replicated_axis(const ShardingRequest& request, const Layout& layout) {
  if (!request.mesh.device_mesh) return layout.replicate;
  const Mesh& mesh = *request.mesh.device_mesh;
  const int64_t dp = request.mesh.dp, cp = mesh.size("cp"), ranks = times(dp, cp);
  int64_t others = 1;  // that hold other parts of the model
  for (const char* name : {"pp", "tp", "ep", "ep_shard"}) others = times(others, mesh.size(name));
  if (times(ranks, others) != mesh.size())
    refuse_mesh(dp, cp, "the mesh has " + std::to_string(mesh.size() / others) + " of them");
  for (std::string_view name :
       {std::string_view(layout.shard.name), std::string_view("dp"), std::string_view("dp_cp"),
        std::string_view("dp_shard_cp"), std::string_view("dp_shard"),
        std::string_view("dp_replicate"), std::string_view("cp")})
    if (mesh.find_size(name) == ranks) return axis_named(request, std::string(name));
  if (ranks > 1) refuse_mesh(dp, cp, "no axis of the mesh holds all of them");
  return {"dp", 1, 0};
}

Footprint replicated_footprint(const ShardingRequest& request, const ShardingPlan& plan) {
  const std::shared_ptr<const Layout> mesh_layout = layout_of(request, plan);
  const Layout& layout = *mesh_layout;
  const ReplicatedPolicy& policy = plan.replication;
  const Axis axis = request.mesh.device_mesh && request.mesh.device_mesh->has_axis(policy.axis)
                        ? axis_named(request, policy.axis)
                        : replicated_axis(request, layout);
  const MixedPrecision& mp = policy.mp;
  const Workload& work = request.workload;
  Footprint out;
  int64_t trainable = 0, cast = 0;  // elements of those that compute in another dtype
  std::vector<int64_t> held;
  for (size_t i = 0; i < layout.shares.size(); ++i) {
    const int64_t count = layout.shares[i].elements;
    const DType stored = stored_as(request.outline.parameters[i], work);
    out.bytes.weights = plus(out.bytes.weights, times(count, dtype_size(stored)));
    if (stored != mp.param) cast = plus(cast, count);
    held.push_back(request.outline.parameters[i].trainable ? count : 0);
    trainable = plus(trainable, held.back());
  }
  const int64_t element = dtype_size(work.storage), reduce_size = dtype_size(mp.reduce);
  out.bytes.gradients = times(trainable, element);
  out.bytes.optimizer = times(trainable, element, work.optimizer_states);
  // The cast weights live until backward has used them; buckets are a second copy unless gradients
  // are views of them.
  out.bytes.transient = times(cast, dtype_size(mp.param));
  if (axis.size > 1 && (!policy.gradient_as_bucket_view || mp.reduce != work.storage))
    out.bytes.transient = plus(out.bytes.transient, times(trainable, reduce_size));
  out.bytes.activations = activation_bytes(
      request, {.whole_layers = plan.recompute_whole_layers,
                .coming = coming_gradients(request, plan, MemoryFacts::Where::unknown,
                                           out.bytes.gradients)});
  ScheduleBuilder schedule;
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    const GradientBucket& bucket = plan.buckets[b];
    schedule.of_unit("bucket[" + std::to_string(b) + "]", false, /*reductions_overlap=*/true);
    schedule.add(axis, Phase::reduction, "all_reduce", 1,
                 times(bucket.end - bucket.begin, reduce_size));
  }
  add_common_rows(request, held, mp.reduce, schedule);
  out.schedule = schedule.rows();
  return out;
}

}  // namespace footprint

ShardingPlan replicated_plan(const ShardingRequest& request, const ReplicatedPolicy& policy) {
  using namespace footprint;
  ShardingPlan plan = begin_plan(request, "replicate");
  const Layout& layout = *plan.mesh_layout;
  plan.replication = policy;
  plan.replication.mp = request.config.shared.mp;
  plan.replication.axis = replicated_axis(request, layout).name;
  // The last layers' gradients come first.
  std::vector<int64_t> reversed;
  for (size_t i = layout.shares.size(); i-- > 0;)
    if (request.outline.parameters[i].trainable) reversed.push_back(layout.shares[i].elements);
  plan.buckets = gradient_buckets(reversed, dtype_size(plan.replication.mp.reduce),
                                  policy.first_bucket_bytes, policy.bucket_bytes);
  return plan;
}

}  // namespace meshwright
