#include "engine/train/run/prediction_error.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <cmath>

#include "engine/job/plan.h"
#include "engine/launch/device/device.h"
#include "engine/train/step/step_monitor.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::train {

namespace json = boost::json;

namespace {

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

PredictionError::PredictionError(const Job& job, Trainer& trainer, int64_t ranks_a_host)
    : predicted_bytes_(bytes_of(trainer)) {
  if (attached().predict == nullptr) {
    if (!job.table("report").get_string("machine").empty())
      warning_ = "no step time is predicted: report.machine is for a build with apps/performance";
    return;
  }
  try {
    predicted_ = attached().predict(job.impl(), trainer.plan(),
                                    device::device_name(trainer.world().device()), ranks_a_host);
  } catch (const Error& error) {
    warning_ = "no step time is predicted: " + error.message();
  }
}

void PredictionError::add(const StepCost& cost, bool quiet, bool timed) {
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

std::optional<double> PredictionError::seconds() const {
  if (times_.empty()) return std::nullopt;
  return median_of(times_) / 1000;
}

std::string PredictionError::line() const {
  std::string out;
  if (const std::optional<double> took = seconds(); took && predicted_)
    out = " a step took " + report::human_seconds(*took) + ", predicted " +
          report::human_seconds(predicted_->seconds) + " on " + predicted_->machine +
          times_text(*took / predicted_->seconds);
  if (bytes_ > 0 && predicted_bytes_ > 0)
    out += (out.empty() ? " memory " : "; memory ") + report::human_bytes(bytes_) + ", predicted " +
           report::human_bytes(predicted_bytes_) +
           times_text(static_cast<double>(bytes_) / static_cast<double>(predicted_bytes_));
  return out.empty() ? out : "measured beside predicted:" + out;
}

void PredictionError::put_into(json::object& plan) const {
  std::optional<double> predicted;
  json::array rough;
  json::object parts;
  if (predicted_) {
    predicted = predicted_->seconds;
    for (const std::string& why : predicted_->rough) rough.emplace_back(why);
    for (const auto& [name, took] : predicted_->parts) parts[name] = took;
  }
  plan["predicted"] = json::object{
      {"machine", predicted_ ? json::value(predicted_->machine) : json::value(nullptr)},
      {"ranks_per_host",
       predicted_ ? json::value(predicted_->ranks_per_host) : json::value(nullptr)},
      {"seconds", known(predicted)},
      {"parts", predicted_ ? json::value(parts) : json::value(nullptr)},
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
