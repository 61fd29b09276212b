#include <algorithm>

#include "footprint_parts.h"

namespace meshwright {

Footprint replicated_footprint(const FootprintRequest& request, const ReplicatedPolicy& policy) {
  using namespace footprint;
  Layout layout = make_layout(request);
  // All ranks that work on other samples or other parts of them. Under a mesh that shards, replicas
  // and shards alike hold copies.
  Axis axis = layout.replicate;
  if (request.mesh.device_mesh) {
    const Mesh& mesh = *request.mesh.device_mesh;
    axis = layout.shard;
    for (const char* name : {"dp", "dp_cp"})
      if (mesh.size(name) > axis.size)
        axis = {name, mesh.size(name), mesh.coordinate(request.rank, name)};
  }
  const MixedPrecision& mp = request.config.shared.mp;
  const Workload& work = request.workload;
  Footprint out;
  int64_t elements = 0;
  std::vector<int64_t> held;
  for (size_t i = 0; i < layout.shares.size(); ++i) {
    out.parameters.push_back(
        placement_of(request.outline.parameters[i], layout.shares[i], layout, "replicate"));
    elements = plus(elements, layout.shares[i].elements);
    held.push_back(layout.shares[i].elements);
  }
  int64_t element = dtype_size(work.storage), reduced = times(elements, dtype_size(mp.reduce));
  out.bytes.weights = out.bytes.gradients = times(elements, element);
  out.bytes.optimizer = times(elements, element, work.optimizer_states);
  // The cast weights live until backward has used them; buckets are a second copy unless gradients
  // are views of them.
  if (mp.param != work.storage) out.bytes.transient = times(elements, dtype_size(mp.param));
  if (axis.size > 1 && (!policy.gradient_as_bucket_view || mp.reduce != work.storage))
    out.bytes.transient = plus(out.bytes.transient, reduced);
  out.bytes.activations = activation_bytes(request, /*whole_layers=*/true);
  Traffic wire;
  int64_t reduce_size = dtype_size(mp.reduce);
  std::vector<int64_t> reversed(held.rbegin(), held.rend());
  for (const GradientBucket& bucket :
       gradient_buckets(reversed, reduce_size, policy.first_bucket_bytes, policy.bucket_bytes))
    wire.add(axis, "all_reduce", 1, times(bucket.end - bucket.begin, reduce_size));
  add_common_rows(request, held, mp.reduce, wire);
  out.wire = wire.rows();
  return out;
}

}  // namespace meshwright
