#include "meshwright/footprint.h"

#include <algorithm>

#include "footprint_parts.h"

namespace meshwright {

int64_t Communication::sent() const {
  using footprint::scaled;
  // Of a ring, or in place: both ways of an all-reduce.
  return ranks <= 1           ? 0
         : op == "all_reduce" ? scaled(payload, 2 * (ranks - 1), ranks)
         : op == "send"       ? payload
                              : scaled(payload, ranks - 1, ranks);
}

std::vector<WireRow> wire_of(const CommunicationSchedule& schedule) {
  std::vector<WireRow> out;
  for (const Communication& row : schedule) {
    if (row.ranks <= 1 || row.count == 0 || row.payload == 0) continue;
    auto at = std::find_if(out.begin(), out.end(), [&](const WireRow& sum) {
      return sum.axis == row.axis && sum.op == row.op && sum.every == row.every;
    });
    if (at == out.end()) at = out.insert(out.end(), {row.axis, row.op, 0, 0, row.every});
    at->count = footprint::plus(at->count, row.count);
    // Rounded one by one, as what is sent is counted.
    at->bytes = footprint::plus(at->bytes, footprint::times(row.count, row.sent()));
  }
  return out;
}

namespace footprint {
namespace {

void add_own_cost(const OwnCost& own, Footprint& out) {
  Bytes& bytes = out.bytes;
  if (own.replaces) {
    bytes = {.activations = bytes.activations};
    std::erase_if(out.schedule, [](const Communication& row) {
      return row.axis.starts_with("dp") || row.axis == "ep_shard";
    });
  }
  bytes.weights = plus(bytes.weights, own.bytes.weights);
  bytes.gradients = plus(bytes.gradients, own.bytes.gradients);
  bytes.optimizer = plus(bytes.optimizer, own.bytes.optimizer);
  bytes.transient = plus(bytes.transient, own.bytes.transient);
  bytes.activations = plus(bytes.activations, own.bytes.activations);
  out.schedule.insert(own.replaces ? out.schedule.begin() : out.schedule.end(),
                      own.schedule.begin(), own.schedule.end());
}

}  // namespace
}  // namespace footprint

Footprint footprint_of(const ShardingRequest& request, const ShardingPlan& plan) {
  Footprint out = plan.replicated ? footprint::replicated_footprint(request, plan)
                  : plan.sharding.layout == ShardLayout::flat
                      ? footprint::flat_footprint(request, plan)
                      : footprint::rows_footprint(request, plan);
  out.parameters = plan.parameters;
  out.notices = plan.notices;
  if (plan.own_cost) footprint::add_own_cost(*plan.own_cost, out);
  out.wire = wire_of(out.schedule);
  return out;
}

namespace footprint {
namespace {

// Sums for the peak of gathered parameters and unreduced gradients.
struct Peak {
  int64_t kept = 0, all_gradients = 0, root_gradients = 0;
  int64_t last = 0;                          // kept from their forward to their backward
  std::vector<int64_t> gathered, gradients;  // of units that come and go

  // What comes last is there before `ahead` others are fetched for backward, and is not yet in
  // forward, which has one in use beside those.
  int64_t parameters(int64_t ahead) const {
    return plus(kept, std::max(plus(last, sum_of_largest(gathered, ahead)),
                               sum_of_largest(gathered, plus(ahead, 1))));
  }
};

// Elements on this rank in shards, and of them trainable; bytes beside them, of frozen parameters
// of another dtype and of those that are whole.
struct RowSums {
  int64_t sharded = 0, trainable = 0, beside = 0;
};

// Where each micro-batch is reduced, sums of them are kept as they were summed over ranks. Copies
// reduce once.
DType kept_gradient(const Workload& work, const ShardingPolicy& policy, bool copies) {
  const PrecisionPolicy& precision = policy.precision;
  const bool adds_up = policy.reduction.every_micro_batch && !copies &&
                       dtype_size(precision.mp.reduce) > dtype_size(work.storage);
  return precision.main_gradients.value_or(adds_up ? precision.mp.reduce : work.storage);
}

Bytes rows_bytes(const Workload& work, const PrecisionPolicy& precision, DType gradient,
                 const RowSums& sums) {
  const int64_t storage = dtype_size(work.storage);
  const std::optional<DType>& main = precision.main_weights;
  // Main weights beside the model's own, frozen ones of their dtype included: a shard has one
  // dtype. Weights that are as wide already serve as both.
  const int64_t beside = main && *main != work.storage ? dtype_size(*main) : 0,
                state = main ? dtype_size(*main) : storage;
  Bytes out;
  out.weights = plus(times(sums.sharded, storage), sums.beside);
  out.gradients = times(sums.trainable, dtype_size(gradient));
  out.optimizer =
      plus(times(sums.sharded, beside), times(sums.trainable, state, work.optimizer_states));
  return out;
}

}  // namespace

Footprint rows_footprint(const ShardingRequest& request, const ShardingPlan& plan) {
  const std::shared_ptr<const Layout> mesh_layout = layout_of(request, plan);
  const Layout& layout = *mesh_layout;
  const Workload& work = request.workload;
  const ShardingPolicy& policy = plan.sharding;
  const bool every = policy.reduction.every_micro_batch;
  const int64_t passes = passes_of(request), runs = runs_of(request), reduces = every ? passes : 1;
  Footprint out;
  ScheduleBuilder schedule;
  Peak peak;
  const ModuleIndex index(request.outline);
  RowSums sums;
  const bool copies = alone_as_copies(request, plan), stages = pipeline_size(request) > 1;
  const DType gradient = kept_gradient(work, policy, copies);
  int64_t cast = 0;                                 // bytes of all that computes in another dtype
  std::vector<int64_t> held(layout.shares.size());  // elements of each gradient on this rank
  DType widest_reduce = policy.precision.mp.reduce;
  for (const PlannedUnit& planned : plan.units) {
    const MixedPrecision& mp = planned.mp ? *planned.mp : policy.precision.mp;
    if (dtype_size(mp.reduce) > dtype_size(widest_reduce)) widest_reduce = mp.reduce;
    const Axis& axis = planned.experts ? layout.ep_shard : layout.shard;
    const std::shared_ptr<const UnitLayout> unit_layout =
        unit_layout_of(request, layout, plan, planned);
    const UnitLayout& unit = *unit_layout;
    bool casts = false;
    for (size_t i = 0; i < unit.parameters().size(); ++i) {
      const ParameterOutline& parameter =
          request.outline.parameters[planned.parameters[unit.given(i)]];
      const int64_t elements = unit.part_elements(i, axis.index);
      casts = casts || stored_as(parameter, work) != mp.param;
      if (stored_as(parameter, work) != mp.param)
        cast = plus(cast, times(elements, dtype_size(mp.param)));
      if (stored_apart(parameter, work)) {
        sums.beside = plus(sums.beside, times(elements, dtype_size(parameter.dtype)));
        continue;
      }
      sums.sharded = plus(sums.sharded, elements);
      if (!unit.parameters()[i].trainable) continue;
      held[planned.parameters[unit.given(i)]] = elements;
      sums.trainable = plus(sums.trainable, elements);
    }
    const bool reshards = planned.reshard_after_forward;
    const int64_t gathered = times(unit.shard_size(), axis.size, dtype_size(mp.param)),
                  reduced = times(unit.trainable_size(), axis.size, dtype_size(mp.reduce));
    const int64_t gathers = reshards              ? passes
                            : planned.once_a_step ? 1
                                                  : runs,
                  again = reshards && unit_has_backward(request, index, planned) ? passes : 0;
    schedule.of_unit(planned.name, policy.prefetch.ahead() > 0, /*reductions_overlap=*/true);
    if (!planned.parameters.empty()) {
      schedule.add(axis, Phase::forward, "all_gather", gathers, gathered);
      schedule.add(axis, Phase::backward, "all_gather", again, gathered);
    }
    if (unit.trainable_size() > 0) {
      schedule.add(axis, Phase::reduction, "reduce_scatter", reduces, reduced);
      if (!planned.experts && !policy.independent_replicas)
        schedule.add(layout.replicate, Phase::reduction, "all_reduce", reduces,
                     reduced / axis.size);
    }
    // Experts that ep alone cuts are no unit: nothing gathers or reduces them.
    if (!planned.experts || axis.size > 1)
      out.units.push_back({planned.name, unit.elements(), gathered, reshards, planned.once_a_step,
                           unit.trainable_size()});

    // Without a second rank the shard itself serves, unless it must be cast.
    if (axis.size > 1 || casts) {
      if (reshards)
        peak.gathered.push_back(gathered);
      else if (planned.root || planned.once_a_step || stages)
        peak.kept = plus(peak.kept, gathered);
      else
        peak.last = plus(peak.last, gathered);
    }
    // A pipeline adds up beside the shard even where that is all of it, and so do experts that ep
    // alone cuts, whose products are written into the shard in the micro-batch that reduces.
    if (axis.size > 1 || ((stages || (planned.experts && !every)) && passes > 1) ||
        mp.reduce != gradient ||
        (!planned.experts && layout.replicate.size > 1 && !policy.independent_replicas)) {
      peak.all_gradients = plus(peak.all_gradients, reduced);
      if (planned.root)
        peak.root_gradients = plus(peak.root_gradients, reduced);
      else
        peak.gradients.push_back(reduced);
    }
  }
  for (size_t p : plan.whole)
    sums.beside =
        plus(sums.beside, times(layout.shares[p].elements,
                                dtype_size(stored_as(request.outline.parameters[p], work))));
  out.bytes = rows_bytes(work, policy.precision, gradient, sums);
  // Copies keep what is cast.
  const int64_t parameters =
      copies ? cast : peak.parameters(std::max<int64_t>(policy.prefetch.ahead(), 0));
  out.bytes.transient =
      plus(parameters, !every && passes > 1
                           ? peak.all_gradients
                           : plus(peak.root_gradients, sum_of_largest(peak.gradients, 2)));
  out.bytes.activations = activation_bytes(
      request, {.whole_layers = plan.recompute_whole_layers,
                .gradients = stages && !every && passes > 1 ? peak.all_gradients : 0,
                .coming = coming_gradients(request, plan, MemoryFacts::Where::unknown,
                                           out.bytes.gradients)});
  add_common_rows(request, held, widest_reduce, schedule);
  out.schedule = schedule.rows();
  return out;
}

}  // namespace footprint
}  // namespace meshwright
