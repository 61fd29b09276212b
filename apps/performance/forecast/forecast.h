// What the rows of a communication schedule come to: bytes that move when, and seconds on a
// machine. They are all that is asked of a strategy, so those of a third party count like ours.
// Pure.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/performance/steptime/job.h"
#include "apps/performance/steptime/kernels.h"
#include "apps/performance/steptime/machine.h"
#include "apps/performance/steptime/predict.h"
#include "engine/job/plan.h"
#include "meshwright/footprint.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::forecast {

// Payloads that the data-parallel ranks exchange in each step, whole, in bytes, each as often as it
// goes.
struct DataMoved {
  // Over the ranks that share a shard: gathered for the forward or after the update, gathered again
  // for the backward, reduced.
  double gathered = 0, gathered_again = 0, reduced = 0;
  double summed = 0;  // reduced over the copies of a shard
  // How often a byte is gathered a step, and reduced, on average.
  double gathers = 0, reductions = 0;
  // Whether computation goes on beside reductions, and beside gathers.
  bool hidden = false, fetched_ahead = false;
};

// How many ranks share a shard of what the rank of a schedule holds: those that its rows gather,
// send what each has updated, or scatter over. 1: it holds copies, whatever axes the mesh has for
// shards.
double shard_ranks(const CommunicationSchedule& schedule);
// `data_ranks`: how many train on other samples, or on other parts of them.
DataMoved data_moved(const CommunicationSchedule& schedule, double data_ranks);
DataMoved data_moved(const plan::JobPlan& plan);

// Seconds of a step's rows over `axis`, one after the other.
double seconds_of_rows(const steptime::Machine& machine, const CommunicationSchedule& schedule,
                       std::string_view axis, const steptime::Group& group);
// The same of ep: tokens to experts and back by the model's dispatch(), whose latency has the
// counts that go ahead of them; what is gathered instead, as collectives.
double expert_seconds(const steptime::Machine& machine, const CommunicationSchedule& schedule,
                      const steptime::Shape& shape, const steptime::Job& job);
// The same of cp, whose messages travel beside the attention of one layer where it is a ring
// (exposed_ring()).
double context_seconds(const steptime::Machine& machine, const CommunicationSchedule& schedule,
                       const steptime::Shape& shape, const steptime::Job& job);

// Seconds of a schedule's exchanges on a machine, into `job`, which has its sizes.
void set_exchange_seconds(const steptime::Machine& machine, const steptime::Shape& shape,
                          const CommunicationSchedule& schedule, steptime::Job& job);

// How long a step of a planned job takes on a machine, and whether it fits: the step-time model
// (apps/performance/steptime) asked with the bytes that the plan of the job says. Starts nothing.

// Of what rank a figure is, and the rank's coordinate on pp where the job is a pipeline.
struct Place {
  int64_t rank = 0;
  std::optional<int64_t> stage_rank;

  std::string text() const;  // "rank 48 (pp 3)"
};

struct Forecast {
  steptime::Machine machine;
  steptime::Shape shape;
  steptime::Job job;
  steptime::Prediction time;
  double tokens_a_second = 0;  // of a device
  double mfu = 0;              // share of the peak; nothing counts for recomputation
  // Of one rank for each place in the pipeline, and of the one asked about: whose stages take
  // longest, and the fullest; `job` and `time` are by the rows that make the longest step.
  std::optional<Place> slowest, fullest;
  double memory = 0;  // bytes of the fullest rank's device at its peak, as the plan counts them
  std::optional<Bytes> bytes;  // what that is
  double host_memory = 0;      // and of the host, where an offloaded job has its states
  double usable = 0;           // bytes of the device that a job can have
  std::string bound;           // the largest part: "products"
  double bound_share = 0;
  std::vector<std::string> rough;  // why the figure is rougher than docs/step_time.md promises
  // What the seconds of exchanges in `job` were had from.
  std::optional<CommunicationSchedule> schedule;

  double room() const { return 1 - memory / usable; }  // below 0: it does not fit
  // "comfortable", "tight", "very tight" or "too large".
  const char* fit() const;
  bool is_very_tight() const { return room() < kVeryTight; }

  static constexpr double kVeryTight = 0.03;  // room below which an allocator may stall
};

// Sizes of a model and of a planned job in the model's terms.
steptime::Shape shape_of(const ModelOutline& outline);
// Of "model.layers.3.mlp.up_proj.weight", 3: the first part of a name that is a number, whatever
// the list is called; -1: none is.
int64_t layer_of(const std::string& name);
// Bytes of an element in the job's products, which say whose peak counts.
double compute_width(const plan::JobPlan& plan);
// Whether its products of float32 may be in TF32, which has a peak of its own.
bool asks_for_tf32(const plan::Job& job);
double peak_of(const steptime::Machine& machine, double width, bool tf32);
// Whether the job wants Linears of layers in 8-bit floats, and whether the machine multiplies in
// them: a processor has the same numbers in float32. Throws Error(missing_key) for a device without
// a peak of theirs, as `train` refuses it.
bool asks_for_float8(const plan::Job& job);
bool multiplies_in_float8(const plan::Job& job, const steptime::Machine& machine);
// Which rank the plan is of changes nothing but for rows that do not divide evenly. Throws
// Error(missing_key) when the plan has no model or no length of a sample.
Forecast forecast(const plan::Job& job, const plan::JobPlan& plan,
                  const steptime::Machine& machine);
// The same step on another machine, whose hosts have as many ranks: what forecast() would say of
// the rank that `forecast.job` is of, without its plan.
steptime::Prediction predicted_on(const steptime::Machine& machine, const Forecast& forecast,
                                  steptime::Bubble bubble = steptime::Bubble::simulated);
// Why its figures are rougher than docs/step_time.md promises; of what the machine guesses, only
// figures that it goes by.
std::vector<std::string> rough_of(const Forecast& forecast);

// Where the shipped machine files lie: beside the program, or in the source tree.
std::string machines_folder();

// The parts of a step by name, in seconds, in the order they are shown.
std::vector<std::pair<std::string, double>> parts_of(const steptime::Parts& parts);
// The same of memory, in bytes: as a plan counts it, and as the model does.
std::vector<std::pair<std::string, int64_t>> parts_of(const Bytes& bytes);
std::vector<std::pair<std::string, int64_t>> parts_of(const steptime::Memory& memory);
std::string draw(const report::Style& style, const Forecast& forecast);
boost::json::object to_json(const Forecast& forecast);

}  // namespace meshwright::forecast
