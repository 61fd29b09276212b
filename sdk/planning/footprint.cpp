#include "meshwright/footprint.h"

#include <algorithm>

#include "footprint_parts.h"
#include "meshwright/activation_bytes.h"

namespace meshwright {

Footprint footprint_of(const ShardingRequest& request, const ShardingPlan& plan) {
  Footprint out = plan.replicated ? footprint::replicated_footprint(request, plan)
                  : plan.sharding.layout == ShardLayout::flat
                      ? footprint::flat_footprint(request, plan)
                      : footprint::rows_footprint(request, plan);
  out.parameters = plan.parameters;
  out.notices = plan.notices;
  return out;
}

namespace footprint {
namespace {

// Sums for the peak of gathered parameters and unreduced gradients.
struct Peak {
  int64_t kept = 0, all_gradients = 0, root_gradients = 0;
  std::vector<int64_t> gathered, gradients;  // of units that come and go
};

}  // namespace

Footprint rows_footprint(const ShardingRequest& request, const ShardingPlan& plan) {
  const Layout layout = make_layout(request);
  const Workload& work = request.workload;
  const ShardingPolicy& policy = plan.sharding;
  const bool every = policy.reduction.every_micro_batch;
  const int64_t passes = passes_of(request), runs = runs_of(request), reduces = every ? passes : 1;
  Footprint out;
  Traffic wire;
  Peak peak;
  int64_t local = 0, trainable = 0;
  std::vector<int64_t> held(layout.shares.size());  // elements of each gradient on this rank
  DType widest_reduce = policy.precision.mp.reduce;
  for (const PlannedUnit& planned : plan.units) {
    const MixedPrecision& mp = planned.mp ? *planned.mp : policy.precision.mp;
    if (dtype_size(mp.reduce) > dtype_size(widest_reduce)) widest_reduce = mp.reduce;
    const Axis& axis = planned.experts ? layout.ep_shard : layout.shard;
    const UnitLayout& unit = *planned.layout;
    for (size_t i = 0; i < unit.parameters().size(); ++i) {
      const int64_t elements = unit.part_elements(i, axis.index);
      local = plus(local, elements);
      if (!unit.parameters()[i].trainable) continue;
      held[planned.parameters[unit.given(i)]] = elements;
      trainable = plus(trainable, elements);
    }
    const bool reshards = planned.reshard_after_forward;
    const int64_t gathered = times(unit.shard_size(), axis.size, dtype_size(mp.param)),
                  reduced = times(unit.trainable_size(), axis.size, dtype_size(mp.reduce));
    if (!planned.parameters.empty())
      wire.add(axis, "all_gather", reshards ? times(2, passes) : runs, gathered);
    if (unit.trainable_size() > 0) {
      wire.add(axis, "reduce_scatter", reduces, reduced);
      if (!planned.experts) wire.add(layout.replicate, "all_reduce", reduces, reduced / axis.size);
    }
    // Experts that ep alone cuts are no unit: nothing gathers or reduces them.
    if (!planned.experts || axis.size > 1)
      out.units.push_back({planned.name, unit.elements(), gathered, reshards});

    // Without a second rank the shard itself serves, unless it must be cast.
    if (axis.size > 1 || mp.param != work.storage) {
      if (reshards)
        peak.gathered.push_back(gathered);
      else
        peak.kept = plus(peak.kept, gathered);
    }
    if (axis.size > 1 || mp.reduce != work.storage ||
        (!planned.experts && layout.replicate.size > 1)) {
      peak.all_gradients = plus(peak.all_gradients, reduced);
      if (planned.root)
        peak.root_gradients = plus(peak.root_gradients, reduced);
      else
        peak.gradients.push_back(reduced);
    }
  }
  for (size_t p : plan.whole) local = plus(local, layout.shares[p].elements);
  const int64_t element = dtype_size(work.storage);
  out.bytes.weights = times(local, element);
  out.bytes.gradients = times(trainable, element);
  out.bytes.optimizer = times(trainable, element, work.optimizer_states);
  out.bytes.transient = plus(
      plus(peak.kept,
           sum_of_largest(peak.gathered, plus(std::max<int64_t>(policy.prefetch.ahead(), 0), 1))),
      !every && passes > 1 ? peak.all_gradients
                           : plus(peak.root_gradients, sum_of_largest(peak.gradients, 2)));
  out.bytes.activations = activation_bytes(request, plan.recompute_whole_layers);
  add_common_rows(request, held, widest_reduce, wire);
  out.wire = wire.rows();
  return out;
}

}  // namespace footprint
}  // namespace meshwright
