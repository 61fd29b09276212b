#include "apps/performance/forecast/exchanges.h"

#include <algorithm>

#include "apps/performance/steptime/kernels.h"

namespace meshwright::forecast {
namespace {

bool is_data_axis(std::string_view axis) { return axis.starts_with("dp") || axis == "ep_shard"; }
bool gathers(const Communication& row) { return row.op == "all_gather" || row.op == "broadcast"; }
bool shares(const Communication& row) { return gathers(row) || row.op == "reduce_scatter"; }

// `group`: how the ranks of the axis lie.
double row_seconds(const steptime::Machine& machine, const Communication& row,
                   steptime::Group group) {
  if (row.ranks <= 1 || row.count <= 0) return 0;
  group.size = static_cast<double>(row.ranks);
  const auto count = static_cast<double>(row.count);
  if (row.op == "all_reduce")
    return count * steptime::all_reduce(machine, group, static_cast<double>(row.payload));
  const steptime::Ring ring = steptime::ring_of(machine, group);
  const double steps = row.op == "send" ? 1 : group.size - 1;
  return count * (steps * ring.step + static_cast<double>(row.sent()) / ring.rate);
}

}  // namespace

double shard_ranks(const plan::JobPlan& plan) {
  int64_t out = 1;
  for (const Communication& row : plan.footprint->schedule)
    if (is_data_axis(row.axis) && shares(row)) out = std::max(out, row.ranks);
  return static_cast<double>(out);
}

DataMoved data_moved(const plan::JobPlan& plan) {
  const ParallelSizes& sizes = plan.shared.sizes;
  const double copies = static_cast<double>(plan.world_size) /
                        (static_cast<double>(sizes.tp * sizes.pp) * shard_ranks(plan));
  DataMoved out;
  double gathered = 0, reduced = 0;  // each byte once
  for (const Communication& row : plan.footprint->schedule) {
    if (!is_data_axis(row.axis) || row.ranks <= 1) continue;
    const auto once = static_cast<double>(row.payload), all = static_cast<double>(row.count) * once;
    if (row.every > 1) {
      out.seldom += all / static_cast<double>(row.every);
      continue;
    }
    if (gathers(row)) {
      const bool again = row.phase == Communication::Phase::backward;
      (again ? out.gathered_again : out.gathered) += all;
      if (!again) gathered += once;
      continue;
    }
    out.hidden = out.hidden || row.overlaps;
    if (row.op == "all_reduce" && static_cast<double>(row.ranks) <= copies) {
      out.summed += all;
      if (shard_ranks(plan) > 1) continue;  // after what is scattered
    } else {
      out.reduced += row.op == "all_reduce" ? 2 * all : all;  // among those that share: both ways
    }
    out.reductions += all;
    reduced += once;
  }
  out.gathers = gathered > 0 ? out.gathered / gathered : 0;
  out.reductions = reduced > 0 ? out.reductions / reduced : 0;
  return out;
}

double seconds_of_rows(const steptime::Machine& machine, const CommunicationSchedule& schedule,
                       std::string_view axis, const steptime::Group& group) {
  double out = 0;
  for (const Communication& row : schedule)
    if (row.axis == axis) out += row_seconds(machine, row, group);
  return out;
}

double expert_seconds(const steptime::Machine& machine, const CommunicationSchedule& schedule,
                      const steptime::Shape& shape, const steptime::Job& job) {
  const steptime::Group group{job.ep, 1, job.ranks_per_host, job.ranks};
  double dispatches = 0;
  for (const Communication& row : schedule)
    if (row.axis == "ep" && row.op == "all_to_all") dispatches += static_cast<double>(row.count);
  if (dispatches <= 0) return seconds_of_rows(machine, schedule, "ep", group);
  return dispatches * steptime::dispatch(machine, group, job.tokens(), shape.experts_a_token,
                                         job.width * shape.hidden);
}

double context_seconds(const steptime::Machine& machine, const CommunicationSchedule& schedule,
                       const steptime::Shape& shape, const steptime::Job& job, bool ring) {
  const steptime::Group group{job.cp, job.tp, job.ranks_per_host, job.ranks};
  // Keys and values go round in each forward and once more in backward, where their gradients come
  // along.
  double bare = 0, forward = 0, backward = 0;
  for (const Communication& row : schedule) {
    if (row.axis != "cp") continue;
    const bool sent = ring && row.op == "send", back = row.phase == Communication::Phase::backward;
    (!sent ? bare : back ? backward : forward) += row_seconds(machine, row, group);
  }
  const double forwards = job.recompute == steptime::Recompute::full ? 2 : 1,
               times = job.micro_batches * job.runs * shape.layers / job.pp;
  const steptime::Core core =
      steptime::attention_core(machine, job, shape.heads / job.tp, shape.head_dim);
  const double once = forwards * times;
  return bare + once * steptime::exposed_ring(machine, forward / once, core.forward) +
         times * steptime::exposed_ring(machine, backward / times, core.backward);
}

Exchanged exchanged_of(const plan::JobPlan& plan) {
  return {plan.footprint->schedule, data_moved(plan).seldom,
          plan.context && plan.context->method == ContextMethod::ring};
}

void set_exchange_seconds(const steptime::Machine& machine, const steptime::Shape& shape,
                          const Exchanged& said, steptime::Job& job) {
  const double passes = job.micro_batches * job.runs * shape.layers / job.pp;
  const steptime::Group tp{job.tp, 1, job.ranks_per_host, job.ranks},
      replicas{job.replicas(), job.tp * job.shard, job.ranks_per_host, job.ranks};
  const double left = job.async_tp == steptime::AsyncTp::torch ? machine.overlap.async_tp : 1;
  if (job.tp > 1)
    job.tp_seconds = left * seconds_of_rows(machine, said.schedule, "tp", tp) / passes;
  if (job.cp > 1)
    job.cp_seconds = context_seconds(machine, said.schedule, shape, job, said.ring) / passes;
  if (job.ep > 1) job.ep_seconds = expert_seconds(machine, said.schedule, shape, job) / passes;
  job.beside_seconds = steptime::all_reduce(machine, replicas, said.seldom);
}

}  // namespace meshwright::forecast
