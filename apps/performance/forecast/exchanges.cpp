#include "apps/performance/forecast/exchanges.h"

#include <algorithm>

#include "apps/performance/steptime/kernels.h"

namespace meshwright::forecast {
namespace {

bool is_data_axis(std::string_view axis) { return axis.starts_with("dp") || axis == "ep_shard"; }
bool gathers(const WireRow& row) { return row.op == "all_gather" || row.op == "broadcast"; }
bool shares(const WireRow& row) { return gathers(row) || row.op == "reduce_scatter"; }

// Payloads from the bytes that one rank sends.
double whole(double sent, double ranks) { return ranks > 1 ? sent * ranks / (ranks - 1) : 0; }

double ranks_of(const plan::JobPlan& plan, const std::string& axis) {
  for (const std::optional<Mesh>* mesh : {&plan.mesh.device_mesh, &plan.mesh.moe_mesh})
    if (*mesh)
      if (const std::optional<int64_t> size = (*mesh)->find_size(axis))
        return static_cast<double>(*size);
  return static_cast<double>(plan.world_size);
}

double row_seconds(const steptime::Machine& machine, const WireRow& row,
                   const steptime::Group& group) {
  if (group.size <= 1 || row.count <= 0) return 0;
  const auto count = static_cast<double>(row.count), bytes = static_cast<double>(row.bytes);
  if (row.op == "all_reduce")
    return count * steptime::all_reduce(machine, group, whole(bytes, group.size) / 2 / count);
  const steptime::Ring ring = steptime::ring_of(machine, group);
  const double steps = row.op == "send" ? 1 : group.size - 1;
  return count * steps * ring.step + bytes / ring.rate;
}

}  // namespace

double shard_ranks(const plan::JobPlan& plan) {
  double out = 1;
  for (const WireRow& row : plan.footprint->wire)
    if (is_data_axis(row.axis) && shares(row)) out = std::max(out, ranks_of(plan, row.axis));
  return out;
}

DataMoved data_moved(const plan::JobPlan& plan) {
  const ParallelSizes& sizes = plan.shared.sizes;
  const double copies = static_cast<double>(plan.world_size) /
                        (static_cast<double>(sizes.tp * sizes.pp) * shard_ranks(plan));
  DataMoved out;
  for (const WireRow& row : plan.footprint->wire) {
    if (!is_data_axis(row.axis)) continue;
    const double ranks = ranks_of(plan, row.axis),
                 payload = whole(static_cast<double>(row.bytes), ranks);
    if (row.every > 1)
      out.seldom += payload / 2 / static_cast<double>(row.every);
    else if (gathers(row))
      out.gathered += payload;
    else if (row.op == "reduce_scatter")
      out.reduced += payload;
    else if (row.op == "all_reduce" && ranks > copies)  // among those that share: both ways of it
      out.reduced += payload;
    else if (row.op == "all_reduce")
      out.summed += payload / 2;
  }
  return out;
}

double seconds_of_rows(const steptime::Machine& machine, std::span<const WireRow> wire,
                       std::string_view axis, const steptime::Group& group) {
  double out = 0;
  for (const WireRow& row : wire)
    if (row.axis == axis) out += row_seconds(machine, row, group);
  return out;
}

double expert_seconds(const steptime::Machine& machine, std::span<const WireRow> wire,
                      const steptime::Shape& shape, const steptime::Job& job) {
  const steptime::Group group{job.ep, 1, job.ranks_per_host, job.ranks};
  double dispatches = 0;
  for (const WireRow& row : wire)
    if (row.axis == "ep" && row.op == "all_to_all") dispatches += static_cast<double>(row.count);
  if (dispatches <= 0) return seconds_of_rows(machine, wire, "ep", group);
  return dispatches * steptime::dispatch(machine, group, job.tokens(), shape.experts_a_token,
                                         job.width * shape.hidden);
}

double context_seconds(const steptime::Machine& machine, std::span<const WireRow> wire,
                       const steptime::Shape& shape, const steptime::Job& job, bool ring) {
  const steptime::Group group{job.cp, job.tp, job.ranks_per_host, job.ranks};
  double bare = 0, sent = 0;
  for (const WireRow& row : wire) {
    if (row.axis != "cp") continue;
    (ring && row.op == "send" ? sent : bare) += row_seconds(machine, row, group);
  }
  if (sent <= 0) return bare;
  // Keys and values go round in each forward and once more in backward, where their gradients, in
  // float32 at least, come along.
  const double forwards = job.recompute == steptime::Recompute::full ? 2 : 1,
               gradients = std::max(job.width, 4.0), layers = shape.layers / job.pp,
               times = job.micro_batches * job.runs * layers;
  const double forward = sent / times * job.width / (forwards * job.width + job.width + gradients),
               backward = sent / times - forwards * forward;
  const steptime::Core core =
      steptime::attention_core(machine, job, shape.heads / job.tp, shape.head_dim);
  return bare + times * (forwards * steptime::exposed_ring(machine, forward, core.forward) +
                         steptime::exposed_ring(machine, backward, core.backward));
}

Exchanged exchanged_of(const plan::JobPlan& plan) {
  return {plan.footprint->wire, data_moved(plan).seldom,
          plan.context && plan.context->method == ContextMethod::ring};
}

void set_exchange_seconds(const steptime::Machine& machine, const steptime::Shape& shape,
                          const Exchanged& said, steptime::Job& job) {
  const double passes = job.micro_batches * job.runs * shape.layers / job.pp;
  const steptime::Group tp{job.tp, 1, job.ranks_per_host, job.ranks},
      replicas{job.replicas(), job.tp * job.shard, job.ranks_per_host, job.ranks};
  const double left = job.async_tp == steptime::AsyncTp::torch ? machine.overlap.async_tp : 1;
  if (job.tp > 1) job.tp_seconds = left * seconds_of_rows(machine, said.wire, "tp", tp) / passes;
  if (job.cp > 1)
    job.cp_seconds = context_seconds(machine, said.wire, shape, job, said.ring) / passes;
  if (job.ep > 1) job.ep_seconds = expert_seconds(machine, said.wire, shape, job) / passes;
  job.beside_seconds = steptime::all_reduce(machine, replicas, said.seldom);
}

}  // namespace meshwright::forecast
