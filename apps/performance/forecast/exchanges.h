// What the rows of a communication schedule come to: bytes that move when, and seconds on a
// machine. They are all that is asked of a strategy, so those of a third party count like ours.
// Pure.
#pragma once

#include <string_view>

#include "apps/performance/steptime/job.h"
#include "apps/performance/steptime/network.h"
#include "engine/job/plan.h"

namespace meshwright::forecast {

// Payloads of a step that the data-parallel ranks exchange, whole, in bytes, each as often as it
// goes.
struct DataMoved {
  // Over the ranks that share a shard: gathered for the forward or after the update, gathered again
  // for the backward, reduced.
  double gathered = 0, gathered_again = 0, reduced = 0;
  double summed = 0;  // reduced over the copies of a shard
  double seldom = 0;  // of all-reduces that not every step has, a step
  // How often a byte is gathered a step, and reduced, on average.
  double gathers = 0, reductions = 0;
  bool hidden = false;  // whether computation goes on beside reductions
};

// How many ranks share a shard of what the plan's rank holds: those that its rows gather, send what
// each has updated, or scatter over. 1: it holds copies, whatever axes the mesh has for shards.
double shard_ranks(const plan::JobPlan& plan);
DataMoved data_moved(const plan::JobPlan& plan);

// Seconds of a step's rows over `axis`, one after the other.
double seconds_of_rows(const steptime::Machine& machine, const CommunicationSchedule& schedule,
                       std::string_view axis, const steptime::Group& group);
// The same of ep: tokens to experts and back by the model's dispatch(), whose latency has the
// counts that go ahead of them; what is gathered instead, as collectives.
double expert_seconds(const steptime::Machine& machine, const CommunicationSchedule& schedule,
                      const steptime::Shape& shape, const steptime::Job& job);
// The same of cp. `ring`: messages travel beside the attention of one layer (exposed_ring()).
double context_seconds(const steptime::Machine& machine, const CommunicationSchedule& schedule,
                       const steptime::Shape& shape, const steptime::Job& job, bool ring);

// What a rank's plan says of the exchanges whose seconds the model is told.
struct Exchanged {
  CommunicationSchedule schedule;
  double seldom = 0;  // see DataMoved
  bool ring = false;  // of cp: messages travel beside attention
};
Exchanged exchanged_of(const plan::JobPlan& plan);
// Seconds of these on a machine, into `job`, which has its sizes.
void set_exchange_seconds(const steptime::Machine& machine, const steptime::Shape& shape,
                          const Exchanged& said, steptime::Job& job);

}  // namespace meshwright::forecast
