#include "engine/train/foretold.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <cmath>

#include "engine/device/device.h"
#include "engine/plan/plan.h"
#include "engine/report/report.h"
#include "engine/trainer/step_monitor.h"
#include "sdk/base/plain_text.h"

namespace meshwright::train {

namespace json = boost::json;

namespace {

// nullopt: nobody has named one, and no driver reports one that is known.
std::optional<steptime::Machine> machine_of(const Job& job, World& world, int64_t ranks_a_host) {
  const std::string named = job.table("report").get_string("machine");
  if (!named.empty()) return steptime::find_machine(named, forecast::machines_folder());
  if (world.device().is_cpu()) return std::nullopt;
  const cuda::CudaPart* cuda = device::cuda_part();
  if (cuda == nullptr) return std::nullopt;
  std::optional<steptime::Machine> out = steptime::machine_reported(
      cuda->device_name(world.device().index()), forecast::machines_folder());
  if (out) out->network.ranks_per_host = static_cast<double>(ranks_a_host);
  return out;
}

// Of what the run's meter counts; 0: the plan does not say.
int64_t bytes_of(Trainer& trainer) {
  const plan::JobPlan& plan = trainer.plan();
  if (!plan.footprint || plan.footprint->bytes.activations <= 0) return 0;
  for (const ParallelParameter& p : trainer.model().parameters())
    if (p.local.defined() && p.local.device().type() != trainer.world().device().type())
      return 0;  // offloaded
  const Bytes& b = plan.footprint->bytes;
  return b.weights + b.gradients + b.optimizer + b.transient + b.activations;
}

std::string times_text(double ratio) { return text::format(" (%.2f times)", ratio); }

json::value known(std::optional<double> value) {
  return value ? json::value(*value) : json::value(nullptr);
}
json::value known(int64_t bytes) { return bytes > 0 ? json::value(bytes) : json::value(nullptr); }

}  // namespace

Foretold::Foretold(const Job& job, Trainer& trainer, int64_t ranks_a_host)
    : predicted_bytes_(bytes_of(trainer)) {
  try {
    const std::optional<steptime::Machine> machine = machine_of(job, trainer.world(), ranks_a_host);
    if (!machine) return;
    forecast::Forecast found = forecast::forecast(job.impl(), trainer.plan(), *machine);
    if (std::isfinite(found.time.seconds) && found.time.seconds > 0 && found.shape.hidden > 0 &&
        found.shape.layers > 0)
      forecast_ = std::move(found);
  } catch (const Error& error) {
    warning_ = "no step time is predicted: " + error.message();
  }
}

void Foretold::add(const StepCost& cost, bool quiet, bool timed) {
  const bool first = steps_++ < kFirst;
  if (!quiet) return;
  bytes_ = std::max(bytes_, cost.memory_bytes);
  if (first || !timed) return;
  if (times_.size() < kMost) {
    times_.push_back(cost.step_ms);
    exposed_.push_back(cost.exposed_comm_ms);
  } else {
    times_[timed_ % kMost] = cost.step_ms;
    exposed_[timed_ % kMost] = cost.exposed_comm_ms;
  }
  ++timed_;
}

std::optional<double> Foretold::seconds() const {
  if (times_.empty()) return std::nullopt;
  return median_of(times_) / 1000;
}

std::string Foretold::line() const {
  std::string out;
  if (const std::optional<double> took = seconds(); took && forecast_)
    out = " a step took " + forecast::seconds_text(*took) + ", predicted " +
          forecast::seconds_text(forecast_->time.seconds) + " on " + forecast_->machine.name +
          times_text(*took / forecast_->time.seconds);
  if (bytes_ > 0 && predicted_bytes_ > 0)
    out += (out.empty() ? " memory " : "; memory ") + report::human_bytes(bytes_) + ", predicted " +
           report::human_bytes(predicted_bytes_) +
           times_text(static_cast<double>(bytes_) / static_cast<double>(predicted_bytes_));
  return out.empty() ? out : "measured beside predicted:" + out;
}

void Foretold::put_into(json::object& plan) const {
  std::optional<double> predicted;
  json::array rough;
  json::object parts;
  if (forecast_) {
    predicted = forecast_->time.seconds;
    for (const std::string& why : forecast_->rough) rough.emplace_back(why);
    for (const auto& [name, took] : forecast::parts_of(forecast_->time.parts)) parts[name] = took;
  }
  plan["predicted"] = json::object{
      {"machine", forecast_ ? json::value(forecast_->machine.name) : json::value(nullptr)},
      {"ranks_per_host",
       forecast_ ? json::value(forecast_->machine.network.ranks_per_host) : json::value(nullptr)},
      {"seconds", known(predicted)},
      {"parts", forecast_ ? json::value(parts) : json::value(nullptr)},
      {"memory_bytes", known(predicted_bytes_)},
      {"rough", rough}};
  const std::optional<double> took = seconds();
  if (!took && bytes_ <= 0) return;
  std::vector<double> known_waits = exposed_;
  std::erase_if(known_waits, [](double ms) { return !std::isfinite(ms); });
  std::optional<double> waited;
  if (!known_waits.empty()) waited = median_of(known_waits) / 1000;
  plan["measured"] = json::object{{"seconds", known(took)},
                                  {"exposed_comm_seconds", known(waited)},
                                  {"steps", timed_},
                                  {"memory_bytes", known(bytes_)}};
  std::optional<double> time, memory;
  if (took && predicted) time = *took / *predicted;
  if (bytes_ > 0 && predicted_bytes_ > 0)
    memory = static_cast<double>(bytes_) / static_cast<double>(predicted_bytes_);
  plan["ratio"] = json::object{{"seconds", known(time)}, {"memory", known(memory)}};
}

}  // namespace meshwright::train
