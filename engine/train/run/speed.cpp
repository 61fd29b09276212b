#include "engine/train/run/speed.h"

#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <chrono>
#include <cmath>
#include <map>
#include <utility>

#include "engine/job/plan.h"
#include "engine/launch/device/device.h"
#include "engine/train/step/rank_agreement.h"
#include "engine/train/step/step_monitor.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/host/run_lock.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::train {

Slowest slowest_of(const std::vector<double>& work_ms) {
  if (work_ms.size() < 2) return {};
  std::vector<double> others = work_ms;
  const auto most = std::ranges::max_element(others);
  Slowest out{most - others.begin(), *most, 0};
  others.erase(most);
  out.median_ms = median_of(std::move(others));
  out.above_ms -= out.median_ms;
  return out;
}

// Among all groups of peers, the rank that is furthest behind its own.
SlowRanks::Lag SlowRanks::lag_of(const std::vector<double>& work_ms) const {
  Lag out;
  const int64_t groups = peers_.empty() ? 0 : std::ranges::max(peers_) + 1;
  for (int64_t group = 0; group < groups; ++group) {
    std::vector<double> of_group;
    std::vector<int64_t> ranks;
    for (size_t rank = 0; rank < work_ms.size(); ++rank)
      if (peers_[rank] == group) {
        of_group.push_back(work_ms[rank]);
        ranks.push_back(static_cast<int64_t>(rank));
      }
    const Slowest slowest = slowest_of(of_group);
    if (slowest.rank < 0 || slowest.median_ms <= 0) continue;
    const double share = slowest.above_ms / slowest.median_ms;
    if (share > std::max(kShare, out.share))
      out = {ranks[static_cast<size_t>(slowest.rank)], share, slowest.median_ms};
  }
  return out;
}

std::string SlowRanks::add(const std::vector<double>& work_ms) {
  if (work_ms.size() != peers_.size() || work_ms.empty()) return {};
  const Lag lag = lag_of(work_ms);
  auto called = [&] {
    return "rank " + std::to_string(rank_) + " on host " + hosts_[static_cast<size_t>(rank_)];
  };
  if (lag.rank == rank_ && rank_ >= 0) {
    ++steps_;
    credit_ = std::min(credit_ + 1, kSteps);
    shares_ += lag.share;
    milliseconds_ += lag.median_ms * (1 + lag.share);
    if (steps_ < say_at_ || milliseconds_ < kMilliseconds) return {};
    say_at_ = 10 * steps_;
    said_ = true;
    const std::string share = text::format("%.0f%%", 100 * shares_ / static_cast<double>(steps_));
    return "warning: " + called() + " has needed " + share +
           " longer than the median of the others for " + report::human_count(steps_) +
           " steps: they wait for it";
  }
  // A step in which another rank was held up says nothing of this one.
  credit_ -= kForgiven;
  if (rank_ >= 0 && credit_ > 0) return {};
  std::string out;
  if (said_)
    out = "notice: " + called() + " is no longer slower than the others, after " +
          report::human_count(steps_) + " steps";
  rank_ = lag.rank;
  credit_ = steps_ = lag.rank >= 0 ? 1 : 0;
  say_at_ = kSteps;
  said_ = false;
  shares_ = lag.share;
  milliseconds_ = lag.median_ms * (1 + lag.share);
  return out;
}

namespace {

// `known`: that of another type; one that begins far below it is not measured to its end, for a
// product may take a hundred times as long where a processor has no instructions for it.
double rate_of(at::ScalarType type, double known = 0) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kSize = 256;
  constexpr double kOperations = 2.0 * kSize * kSize * kSize;
  c10::NoGradGuard no_grad;
  const at::Tensor a = at::full({kSize, kSize}, 0.5, type), b = a.clone();
  at::mm(a, b);  // libraries make room for their work once
  // The best of some: what else runs on the host takes now and then a part of one. Each is longer
  // than a turn on a core, so that ranks which share cores see it.
  double best = 0;
  for (int part = 0; part < 8; ++part) {
    const Clock::time_point begin = Clock::now();
    int64_t products = 0;
    double ms = 0;
    while (ms < 6) {
      at::mm(a, b);
      ++products;
      ms = base::ms_since(begin);
    }
    best = std::max(best, static_cast<double>(products) * kOperations * 1000 / ms);
    if (best < known / 4) break;
  }
  return best;
}

}  // namespace

double measured_rate(double width) {
  // Where a processor has no instructions for 16 bits, float32 is the faster way to them.
  if (width <= 2) {
    const double wide = rate_of(at::kFloat);
    return std::max(wide, rate_of(at::kBFloat16, wide));
  }
  return rate_of(width > 4 ? at::kDouble : at::kFloat);
}

Speed::Speed(const Job& job, Trainer& trainer, int64_t seq_len) {
  World& world = trainer.world();
  ComputeFacts facts;
  if (attached().compute != nullptr)
    facts = attached().compute(job.impl(), trainer.plan(), seq_len,
                               device::device_name(world.device()));
  const double a_token = facts.flop_a_token;
  double peak = a_token > 0 ? facts.peak : 0;  // of this rank; 0: not known
  if (a_token > 0 && world.device().is_cpu()) {
    // Ranks of a host share its cores when they train, and so they do here.
    world.everyone()->barrier();
    peak = measured_rate(facts.width);
  }
  std::vector<std::string> hosts;
  std::vector<int64_t> peers;  // ranks of a pipeline are compared within their stage
  const std::optional<Mesh>& mesh = trainer.plan().mesh.device_mesh;
  bool known = a_token > 0;
  double sum = 0;
  for (const auto& [one, host] : gather(world, std::pair(peak, base::this_process().host))) {
    known = known && one > 0;
    sum += one;
    peers.push_back(mesh && mesh->size("pp") > 1 ? mesh->coordinate(std::ssize(hosts), "pp") : 0);
    hosts.push_back(host);
  }
  std::map<std::string, int64_t> of_host;
  for (const std::string& host : hosts) ranks_a_host_ = std::max(ranks_a_host_, ++of_host[host]);
  slow_ = SlowRanks(std::move(hosts), std::move(peers));
  if (!known) return;
  peak_ = sum;
  flop_a_token_ = a_token;
  tokens_ = static_cast<double>(trainer.local_batch() * trainer.accumulation() *
                                trainer.data_parallel_size() * seq_len);
}

void Speed::fill(StepCost& cost, Trainer& trainer, std::optional<int64_t> positions) {
  const StepFacts& facts = monitor_of(trainer).facts();
  cost.ranks = trainer.world().size();
  const double computed = positions ? static_cast<double>(*positions) : tokens_;
  cost.mfu = cost.step_ms > 0 ? flop_a_token_ * computed * 1000 / cost.step_ms / peak_ : kNone;
  // Ranks that were faster than their peak: what is wrong is the peak, for all later steps, too. It
  // was measured while the host had other work, say.
  if (cost.mfu > 1) {
    exceeded_ = text::format(
        "notice: a step did %.4g GFLOP/s, more than the %.4g GFLOP/s taken for the ranks' peak: "
        "MFU is n/a from here on",
        cost.mfu * peak_ / 1e9, peak_ / 1e9);
    cost.mfu = peak_ = kNone;
  }
  cost.exposed_comm_ms = facts.waited_ms;
  const Slowest slowest = slowest_of(facts.work_ms);
  cost.slowest_rank = slowest.rank;
  cost.slowest_ms = slowest.rank >= 0 ? slowest.above_ms : kNone;
  if (slowest.rank >= 0) {
    const auto [least, most] = std::minmax_element(facts.work_ms.begin(), facts.work_ms.end());
    cost.rank_work_ms = median_of(facts.work_ms);
    cost.rank_work_ms_least = *least;
    cost.rank_work_ms_most = *most;
  }
  cost.loss_z = facts.loss_z;
  cost.grad_norm_z = facts.grad_norm_z;
  cost.skipped = facts.skipped;
}

std::vector<std::string> Speed::lines(Trainer& trainer, const StepResult& result) {
  const StepFacts& facts = monitor_of(trainer).facts();
  std::vector<std::string> out;
  if (!exceeded_.empty()) out.push_back(std::exchange(exceeded_, {}));
  if (facts.skipped)
    out.push_back(
        "warning: step " + std::to_string(result.step + 1) + "/" +
        std::to_string(trainer.max_steps()) + " left out: " + facts.why +
        (facts.overflowed ? " (optimizer.dynamic_loss_scale)" : " (run.skip_step_above_z)"));
  if (facts.starts_anew)
    out.push_back("warning: " + std::to_string(StepMonitor::kMostInARow) +
                  " steps in a row were left out: what is usual is learned anew from here on");
  if (std::string slow = slow_.add(facts.work_ms); !slow.empty()) out.push_back(std::move(slow));
  return out;
}

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
  const PredictedStep step = predicted_.value_or(PredictedStep{});
  json::object parts;
  for (const auto& [name, took] : step.parts) parts[name] = took;
  auto predicted = [&](json::value value) { return predicted_ ? value : json::value(nullptr); };
  plan["predicted"] = json::object{{"machine", predicted(json::value(step.machine))},
                                   {"ranks_per_host", predicted(step.ranks_per_host)},
                                   {"seconds", predicted(step.seconds)},
                                   {"parts", predicted(std::move(parts))},
                                   {"memory_bytes", known(predicted_bytes_)},
                                   {"rough", json::array(step.rough.begin(), step.rough.end())}};
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
  if (took && predicted_) time = *took / step.seconds;
  if (bytes_ > 0 && predicted_bytes_ > 0)
    memory = static_cast<double>(bytes_) / static_cast<double>(predicted_bytes_);
  plan["ratio"] = json::object{{"seconds", known(time)}, {"memory", known(memory)}};
}

}  // namespace meshwright::train
