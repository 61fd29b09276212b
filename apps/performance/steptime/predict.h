// From a job and a machine to the seconds of a step, by parts. Pure.
#pragma once

#include <span>

#include "apps/performance/steptime/job.h"
#include "apps/performance/steptime/machine.h"
#include "sdk/base/pipeline.h"

namespace meshwright::steptime {

// Of the rank that the step waits for; they add up to the step.
struct Parts {
  double products = 0, attention = 0, elementwise = 0, recompute = 0;
  double tp = 0, cp = 0, ep = 0, shard = 0;  // what of the exchanges is not hidden
  double bubble = 0;                         // waiting in a pipeline, for messages too
  double optimizer = 0, host = 0, stragglers = 0;

  double sum() const;
};
struct Prediction {
  double seconds = 0;
  Parts parts;
};

// One layer and micro-batch of a rank.
struct LayerTime {
  Parts forward, backward;  // `shard` and all that a step has once are 0
};
LayerTime layer_time(const Machine& machine, const Shape& shape, const Job& job);
// Embedding, head and loss of a micro-batch, forward and backward.
struct EndTime {
  Parts embedding_forward, embedding_backward, head_forward, head_backward;
};
EndTime end_time(const Machine& machine, const Shape& shape, const Job& job);

// What sizes alone say that a rank holds: an estimate, by which a search leaves out what cannot
// fit, of more layouts than can be planned. What a rank of a plan holds is its footprint's bytes.
struct Memory {
  double states = 0, transient = 0, activations = 0, working = 0;  // bytes

  double peak() const { return states + transient + activations + working; }
};
Memory memory_of(const Shape& shape, const Job& job);

// Seconds of a run of a schedule. `times`: of each stage; `message`: from one rank to another,
// which neither waits for. Beyond four micro-batches for each rank the steady part repeats, so that
// two short runs say how long each further one takes.
double makespan(PipelineSchedule schedule, int64_t ranks, int64_t local, int64_t micro_batches,
                std::span<const PipelineTimes> times, double message);

// How the bubble of a pipeline is had: by simulation, or, faster and rougher, in closed form.
enum class Bubble : uint8_t { simulated, closed_form };
Prediction predict(const Machine& machine, const Shape& shape, const Job& job,
                   Bubble bubble = Bubble::simulated);

}  // namespace meshwright::steptime
