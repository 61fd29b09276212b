#include "footprint_parts.h"

namespace meshwright {

namespace footprint {

Axis replicated_axis(const ShardingRequest& request, const Layout& layout) {
  if (!request.mesh.device_mesh) return layout.replicate;
  const Mesh& mesh = *request.mesh.device_mesh;
  Axis axis = layout.shard;
  for (const char* name : {"dp", "dp_cp"})
    if (mesh.size(name) > axis.size)
      axis = {name, mesh.size(name), mesh.coordinate(request.rank, name)};
  return axis;
}

Footprint replicated_footprint(const ShardingRequest& request, const ShardingPlan& plan) {
  const Layout layout = make_layout(request);
  const Axis axis = replicated_axis(request, layout);
  const ReplicatedPolicy& policy = plan.replication;
  const MixedPrecision& mp = policy.mp;
  const Workload& work = request.workload;
  Footprint out;
  int64_t elements = 0, trainable = 0;
  std::vector<int64_t> held;
  for (size_t i = 0; i < layout.shares.size(); ++i) {
    const int64_t count = layout.shares[i].elements;
    elements = plus(elements, count);
    held.push_back(request.outline.parameters[i].trainable ? count : 0);
    trainable = plus(trainable, held.back());
  }
  const int64_t element = dtype_size(work.storage), reduce_size = dtype_size(mp.reduce);
  out.bytes.weights = times(elements, element);
  out.bytes.gradients = times(trainable, element);
  out.bytes.optimizer = times(trainable, element, work.optimizer_states);
  // The cast weights live until backward has used them; buckets are a second copy unless gradients
  // are views of them.
  if (mp.param != work.storage) out.bytes.transient = times(elements, dtype_size(mp.param));
  if (axis.size > 1 && (!policy.gradient_as_bucket_view || mp.reduce != work.storage))
    out.bytes.transient = plus(out.bytes.transient, times(trainable, reduce_size));
  out.bytes.activations = activation_bytes(request, plan.recompute_whole_layers);
  Traffic wire;
  for (const GradientBucket& bucket : plan.buckets)
    wire.add(axis, "all_reduce", 1, times(bucket.end - bucket.begin, reduce_size));
  add_common_rows(request, held, mp.reduce, wire);
  out.wire = wire.rows();
  return out;
}

}  // namespace footprint

ShardingPlan replicated_plan(const ShardingRequest& request, const ReplicatedPolicy& policy) {
  using namespace footprint;
  const Layout layout = make_layout(request);
  ShardingPlan plan = begin_plan(request, layout, "replicate");
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
