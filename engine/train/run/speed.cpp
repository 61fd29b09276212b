#include "engine/train/run/speed.h"

#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <utility>

#include "engine/launch/device/device.h"
#include "engine/train/run/attached.h"
#include "engine/train/step/gather.h"
#include "engine/train/step/step_monitor.h"
#include "sdk/base/files/clock.h"
#include "sdk/base/host/run_lock.h"
#include "sdk/base/plain_text.h"

namespace meshwright::train {

namespace {

// Of this rank; 0: not known.
double peak_of_rank(World& world, const ComputeFacts& facts) {
  if (!world.device().is_cpu()) return facts.peak;
  // Ranks of a host share its cores when they train, and so they do here.
  world.everyone()->barrier();
  return measured_rate(facts.width);
}

// Ranks of a pipeline are compared within their stage.
std::vector<int64_t> peers_of(const Trainer& trainer) {
  std::vector<int64_t> out;
  const std::optional<Mesh>& mesh = trainer.plan().mesh.device_mesh;
  for (int64_t rank = 0; rank < trainer.world().size(); ++rank)
    out.push_back(mesh && mesh->size("pp") > 1 ? mesh->coordinate(rank, "pp") : 0);
  return out;
}

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
  const double peak = a_token > 0 ? peak_of_rank(world, facts) : 0;
  std::vector<std::string> hosts;
  bool known = a_token > 0;
  double sum = 0;
  for (const auto& [one, host] : gather(world, std::pair(peak, base::this_process().host))) {
    known = known && one > 0;
    sum += one;
    hosts.push_back(host);
  }
  std::map<std::string, int64_t> of_host;
  for (const std::string& host : hosts) ranks_a_host_ = std::max(ranks_a_host_, ++of_host[host]);
  slow_ = SlowRanks(std::move(hosts), peers_of(trainer));
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

}  // namespace meshwright::train
