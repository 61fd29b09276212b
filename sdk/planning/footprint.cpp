#include "meshwright/footprint.h"

#include <algorithm>

#include "checkpoint_scope.h"
#include "footprint_parts.h"
#include "meshwright/error.h"
#include "sdk/base/context_plan.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/shared_schemas.h"

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
      return row.axis.starts_with("dp") || row.axis == "ep_shard" ||
             (row.axis == "cp" && row.phase == Phase::reduction);
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
  if (plan.gradient_tolerance)
    out.notices.push_back(
        text::format("gradients are approximate, as the strategy's author declares "
                     "(gradient_tolerance = %g): the sum over the steps may be off by that much of "
                     "the exact sum's L2 norm; meshwright plugins check measures it",
                     *plan.gradient_tolerance));
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
  static const std::vector<std::string> fields = {"first_bucket_bytes",
                                                  "bucket_bytes",
                                                  "gradient_as_bucket_view",
                                                  "mp",
                                                  "broadcast_buffers",
                                                  "find_unused_parameters",
                                                  "static_graph",
                                                  "axis"};
  ShardingPlan plan = begin_plan(request, "replicate", policy.options, fields);
  const Layout& layout = *plan.mesh_layout;
  plan.replication = policy;
  plan.replication.mp = request.config.shared().mp;
  plan.replication.axis = replicated_axis(request, layout).name;
  // The last layers' gradients come first.
  std::vector<int64_t> reversed;
  for (size_t i = layout.shares.size(); i-- > 0;)
    if (request.outline.parameters[i].trainable) reversed.push_back(layout.shares[i].elements);
  plan.buckets = gradient_buckets(reversed, dtype_size(plan.replication.mp.reduce),
                                  policy.first_bucket_bytes, policy.bucket_bytes);
  return plan;
}

namespace footprint {

namespace {

// Rows to the experts and back, forward and backward, each with its routing weight on the way there
// and its gradient on the way back. Balanced routing: every token goes to its active experts, an
// equal part of them on each rank of ep.
void add_all_to_all_rows(const ShardingRequest& request, const Axis& ep, int64_t passes,
                         int64_t forward, int64_t backward, ScheduleBuilder& schedule) {
  const MoeOutline& moe = *request.outline.moe;
  int64_t element = dtype_size(precision_of(request).param),
          assignments = times(tokens_of(request), moe.active_experts);
  int64_t rows = times(assignments, request.outline.hidden_size, element);
  // How many rows each expert gets from whom; layers that are computed again know it, but where
  // they choose again.
  const MoeOptions& options = request.config.shared().moe;
  const bool chosen_once = options.ignore_router_for_ac || options.fake_balanced_gate;
  schedule.add(ep, Phase::forward, "all_gather", chosen_once ? passes : forward,
               times(ep.size, moe.experts, 8));
  for (const auto& [phase, count] :
       {std::pair(Phase::forward, forward), {Phase::backward, backward}}) {
    schedule.add(ep, phase, "all_to_all", count, plus(rows, times(assignments, element)));
    schedule.add(ep, phase, "all_to_all", count, rows);
  }
}

// Every rank gets the tokens, weights and choices of all, and sums are shared out, both at
// least in float32.
void add_all_gather_rows(const ShardingRequest& request, const Axis& ep, int64_t forward,
                         int64_t backward, ScheduleBuilder& schedule) {
  int64_t element = dtype_size(precision_of(request).param), wide = std::max<int64_t>(element, 4),
          tokens = times(ep.size, tokens_of(request));
  int64_t assignments = times(tokens, request.outline.moe->active_experts),
          width = request.outline.hidden_size;
  schedule.add(ep, Phase::forward, "all_gather", forward,
               times(ep.size, 8));  // the number of tokens
  schedule.add(ep, Phase::forward, "all_gather", forward, times(tokens, width, element));
  schedule.add(ep, Phase::forward, "all_gather", forward, times(assignments, wide));
  schedule.add(ep, Phase::forward, "all_gather", forward, times(assignments, 8));
  schedule.add(ep, Phase::forward, "reduce_scatter", forward, times(tokens, width, wide));
  schedule.add(ep, Phase::backward, "all_gather", backward, times(tokens, width, wide));
  schedule.add(ep, Phase::backward, "reduce_scatter", backward, times(assignments, wide));
  schedule.add(ep, Phase::backward, "reduce_scatter", backward, times(tokens, width, element));
}

void add_expert_rows(const ShardingRequest& request, const ModuleIndex& index,
                     ScheduleBuilder& schedule) {
  if (!request.mesh.moe_mesh || !request.outline.moe) return;
  Axis ep{"ep", request.mesh.moe_mesh->size("ep"), 0};
  for (const ModuleOutline& module : request.outline.modules) {
    if (module.kind != ModuleKind::experts) continue;
    const int64_t passes = passes_of(request),
                  backward = index.has_backward(module.name) ? passes : 0,
                  forward = times(passes, forward_runs(request, index, module.name));
    if (request.config.shared().moe.dispatcher == TokenDispatcher::all_gather)
      add_all_gather_rows(request, ep, forward, backward, schedule);
    else
      add_all_to_all_rows(request, ep, passes, forward, backward, schedule);
  }
}

}  // namespace

int64_t tokens_of(const ShardingRequest& request) {
  const Workload& work = request.workload;
  int64_t batch = work.local_batch, length = work.seq_len, cp = 1;
  if (pipeline_size(request) > 1) {
    const PipelineOptions& options = request.config.shared().pipeline;
    batch = options.microbatch_size;
    length = options.seq_len.value_or(length);
  }
  if (request.mesh.device_mesh) cp = request.mesh.device_mesh->size("cp");
  if (cp > 1 && length > 0)
    length = ContextSplit(length, cp, context_balance(request.config.shared().context)).rows();
  return times(batch, length);
}

int64_t message_bytes(const ShardingRequest& request) {
  const DType type = request.config.shared().pipeline.dtype.value_or(precision_of(request).output);
  const int64_t cut = request.mesh.device_mesh && cuts_sequence(request.tp)
                          ? request.mesh.device_mesh->size("tp")
                          : 1;
  return times(tokens_of(request) / cut, request.outline.hidden_size, dtype_size(type));
}

bool in_attention(std::string_view module) {
  return module.find("attn") != std::string_view::npos ||
         module.find("attention") != std::string_view::npos;
}

int64_t forward_runs(const ShardingRequest& request, const ModuleIndex& index,
                     std::string_view module) {
  std::string_view layer = index.layer_of(module);
  if (layer.empty() || !index.has_backward(module) ||
      request.config.shared().activation_checkpointing == ActivationCheckpointing::none)
    return 1;
  if (!checkpoint_scope::holds(request.config.shared().activation_checkpointing_scope, layer))
    return 1;
  if (request.config.shared().activation_checkpointing == ActivationCheckpointing::full) return 2;
  return in_attention(module.substr(layer.size())) ? 1 : 2;
}

void add_common_rows(const ShardingRequest& request, const std::vector<int64_t>& gradient_elements,
                     DType reduce, ScheduleBuilder& schedule) {
  schedule.of_activations();
  add_tp_activations(request, schedule);
  add_partial_gradients(request, gradient_elements, reduce, schedule);
  if (tokens_of(request) == 0) return;
  ModuleIndex index(request.outline);
  add_expert_rows(request, index, schedule);
  if (!request.mesh.device_mesh) return;
  add_context_rows(request, index, schedule);
}

}  // namespace footprint

bool cuts_sequence(const TpPlan& tp) {
  return std::any_of(tp.entries.begin(), tp.entries.end(), [](const TpEntry& entry) {
    return entry.style.input == TpLayout::shard_1 || entry.style.output == TpLayout::shard_1;
  });
}

CommunicationSchedule pipeline_schedule(const ShardingRequest& request, const PipelinePlan& plan) {
  using namespace footprint;
  if (pipeline_size(request) == 1) return {};
  const Mesh& mesh = *request.mesh.device_mesh;
  Axis pp{"pp", mesh.size("pp"), mesh.coordinate(request.rank, "pp")};
  const int64_t bytes = message_bytes(request), passes = passes_of(request);
  ScheduleBuilder schedule;
  // Stages of one rank hand over for free.
  for (size_t s = 0; s + 1 < plan.stages.size(); ++s) {
    const PipelineStage &here = plan.stages[s], &next = plan.stages[s + 1];
    if (here.rank == next.rank) continue;
    if (here.rank == pp.index) schedule.add(pp, Phase::forward, "send", passes, bytes);
    if (next.rank == pp.index && next.sends_gradient)
      schedule.add(pp, Phase::backward, "send", passes, bytes);
  }
  return schedule.rows();
}

}  // namespace meshwright
