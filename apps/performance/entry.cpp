// What a run has of this app while it trains.
#include <cmath>
#include <optional>
#include <string>

#include "apps/performance/forecast/forecast.h"
#include "apps/performance/steptime/machine.h"
#include "engine/train/run/attached.h"

namespace meshwright::forecast {

namespace {

std::optional<train::PredictedStep> predict(const plan::Job& job, const plan::JobPlan& plan,
                                            const std::string& device, int64_t ranks_a_host) {
  std::optional<steptime::Machine> machine;
  if (const std::string named = job.config.table("report").get_string("machine"); !named.empty()) {
    machine = steptime::find_machine(named, machines_folder());
  } else if (!device.empty()) {
    machine = steptime::machine_reported(device, machines_folder());
    if (machine) machine->network.ranks_per_host = static_cast<double>(ranks_a_host);
  }
  if (!machine) return std::nullopt;
  const Forecast found = forecast(job, plan, *machine);
  if (!std::isfinite(found.time.seconds) || found.time.seconds <= 0 || found.shape.hidden <= 0 ||
      found.shape.layers <= 0)
    return std::nullopt;
  return train::PredictedStep{.machine = found.machine.name,
                              .ranks_per_host = found.machine.network.ranks_per_host,
                              .seconds = found.time.seconds,
                              .parts = parts_of(found.time.parts),
                              .rough = found.rough};
}

train::ComputeFacts compute(const plan::Job& job, const plan::JobPlan& plan, int64_t seq_len,
                            const std::string& device) {
  train::ComputeFacts out;
  if (!plan.outline) return out;
  const steptime::Shape shape = shape_of(*plan.outline);
  if (shape.hidden <= 0 || shape.layers <= 0 || shape.heads <= 0 || shape.head_dim <= 0) return out;
  out.flop_a_token = shape.flop_a_token(static_cast<double>(seq_len));
  out.width = compute_width(plan);
  if (device.empty()) return out;
  if (const auto machine = steptime::machine_reported(device, machines_folder()))
    out.peak = peak_of(*machine, out.width, asks_for_tf32(job));
  return out;
}

[[maybe_unused]] const bool kAttached = [] {
  train::Attached& to = train::attached();
  to.predict = predict;
  to.compute = compute;
  return true;
}();

}  // namespace

}  // namespace meshwright::forecast
