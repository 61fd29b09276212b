#include "apps/performance/forecast/search.h"

#include <algorithm>
#include <array>
#include <boost/math/tools/toms748_solve.hpp>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/performance/forecast/layouts.h"
#include "apps/performance/steptime/machine.h"
#include "engine/config/config.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::forecast {

namespace {

// Of a step: no training has as many, and pipelines would be planned for all of them.
constexpr int64_t kMostSamples = int64_t{1} << 20;

int64_t samples_of(const plan::Job& job, const Wanted& wanted) {
  const Options& steps = job.config.table("step_scheduler");
  const int64_t samples = wanted.global_batch.value_or(steps.get_int("global_batch_size"));
  if (samples >= 1 && samples <= kMostSamples) return samples;
  Error error(ErrorCode::out_of_range, "a step of " + std::to_string(samples) + " samples; 1 to " +
                                           std::to_string(kMostSamples) + " can be searched");
  if (wanted.global_batch)
    error.key("--global-batch");
  else
    error.key("step_scheduler.global_batch_size").at(steps.origin("global_batch_size"));
  // About as many as a large step has, and a multiple of the ranks, so that every layout takes it.
  const int64_t each = std::max<int64_t>(1, 1024 / std::max<int64_t>(1, wanted.world_size));
  throw error.help("--global-batch " +
                   std::to_string(std::min(each * wanted.world_size, kMostSamples)));
}

steptime::SearchRequest request_of(plan::Job& job, const steptime::Machine& machine,
                                   const Wanted& wanted) {
  const int64_t samples = samples_of(job, wanted);
  const Trained model = [&] {
    try {
      return trained_model(job);
    } catch (const Error& error) {  // of adapters and groups
      throw config::placed(error, job.config);
    }
  }();
  const Options& data = job.config.table("dataset");
  const int64_t length = data.is_set("seq_len") ? data.get_int("seq_len") : 0;
  if (length <= 0)
    throw Error(ErrorCode::missing_key, "a search needs the length of a sample")
        .key("dataset.seq_len")
        .help("set dataset.seq_len = 4096");
  steptime::SearchRequest out;
  out.machine = machine;
  out.shape = shape_of(model.outline);
  steptime::Job& base = out.base;
  base.length = static_cast<double>(length);
  base.fusion = steptime::Fusion::fused;
  base.loss = steptime::Loss::fused;
  base.optimizer_bytes =
      steptime::optimizer_bytes_of(static_cast<double>(model.work.optimizer_states));
  base.logits = 4;  // in bfloat16, with their gradient; the loss makes no copy
  base.engine_memory = true;
  base.tf32 = asks_for_tf32(job);
  base.fp8 = multiplies_in_float8(job, machine);
  base.engine_casts = true;
  const ContextOptions& context = job.config.shared.context;
  if (context.method == ContextMethod::ring) base.context = steptime::ContextWay::ring;
  if (context.method == ContextMethod::ulysses)
    out.exchange = steptime::Exchange::always;
  else if (!context.method && !context.ring_size && !context.ulysses_size)
    out.exchange = steptime::Exchange::where_it_sends_less;
  out.ways = strategy_ways(job, model, wanted.free, wanted.world_size);
  if (machine.overlap.adds)  // the ranks compute on the host
    for (steptime::Way& way : out.ways) way.on_host = false;
  out.global_batch = static_cast<double>(samples);
  const double usable = machine.memory - machine.outside;
  out.memory = std::min(usable, wanted.max_memory.value_or(usable));
  out.fixed = wanted.fixed;
  out.ranks = static_cast<double>(wanted.world_size);
  base.ranks_per_host = std::min(machine.network.ranks_per_host, out.ranks);
  out.schedules = {PipelineSchedule::interleaved_zero_bubble, PipelineSchedule::zbv_zero_bubble,
                   PipelineSchedule::dual_pipe_v};
  return out;
}

// What --fix says of a size holds for --why as well.
void check_words(const LayoutWords& words, const Wanted& wanted) {
  for (const auto& [key, name] : kSizeWords) {
    const auto fixed = wanted.fixed.find(key);
    const auto asked = words.sizes.find(name);
    if (fixed == wanted.fixed.end() || asked == words.sizes.end()) continue;
    const auto value = static_cast<int64_t>(asked->second);
    if (value == fixed->second) continue;
    const bool samples = std::string_view(key) == "local_batch_size";
    auto word = [samples, before = std::string(name)](int64_t size) {
      return samples ? "micro " + std::to_string(size) + "xM" : before + std::to_string(size);
    };
    const std::string here = word(fixed->second);
    throw Error(ErrorCode::usage, "--why " + report::printable(*wanted.why) + " has " +
                                      word(value) + ", and --fix " + key + "=" +
                                      std::to_string(fixed->second) + " leaves " + here + " alone")
        .help("name " + here + " in --why" + (samples ? "" : "; a size that is not named is 1"))
        .help("leave out --fix " + std::string(key));
  }
}

}  // namespace

Found search(plan::Job& job, const steptime::Machine& machine, const Wanted& wanted) {
  const steptime::SearchRequest request = request_of(job, machine, wanted);
  std::optional<LayoutWords> words;
  if (wanted.why) {
    words = words_of(*wanted.why, request);
    check_words(*words, wanted);
  }
  Found out = planned_layouts(job, wanted.reload, request, wanted.most);
  out.beside_sets = wanted.beside_sets;
  if (words) out.why = why_of(job, wanted, request, *words, out);
  if (out.result.best.empty()) refuse_search(job, wanted, request, out);
  out.families = refused_families(request, out.result.families);
  out.crossovers = crossovers_of(out);
  return out;
}

// Which constant of the machine would put another layout before the first, and by how much it
// would have to be off: both are predicted again with one constant scaled at a time.

namespace {

using steptime::Figure;
using steptime::Layout;

// Times and a time: what is off by more is another machine.
constexpr std::array<double, 4> kRings = {1.1, 1.25, 1.5, 2};
constexpr double kNear = 0.002;  // of a factor, which is shown in whole percent
constexpr std::uintmax_t kCalls = 20;

// What is said of a factor above 1, and of one below.
struct Off {
  const char *more, *less;
};
constexpr Off kSpeed{"faster", "slower"}, kLength{"longer", "shorter"}, kAmount{"more", "less"};

// Figures of a machine that are off together.
struct Constant {
  const char* name;
  Off off;
  std::vector<std::string> keys;
};
const std::vector<Constant>& constants() {
  static const std::vector<Constant> kAll = {
      {"products and attention", kSpeed, {"peak.bf16", "peak.fp8", "peak.fp32", "peak.tf32"}},
      {"attention", kSpeed, {"rate.attention"}},
      {"memory", kSpeed, {"device.bandwidth"}},
      {"element-wise kernels", kSpeed, {"rate.elementwise"}},
      {"the optimizer", kSpeed, {"rate.optimizer"}},
      {"the network inside a host", kSpeed, {"network.bus"}},
      {"the network between hosts", kSpeed, {"network.nic"}},
      {"the messages of a pipeline", kSpeed, {"network.send_inside", "network.send_outside"}},
      {"the steps of collectives", kLength, {"network.step_inside", "network.step_outside"}},
      {"the launches of a layer", kLength, {"host.layer_forward", "host.layer_backward"}},
      {"what kernels lose beside collectives", kAmount, {"overlap.kappa"}},
      {"what ranks gain while others wait", kAmount, {"overlap.alone"}}};
  return kAll;
}

double distance(double factor) { return std::abs(std::log(factor)); }

// The first layouts of a search on machines whose figures are off.
class Alternatives {
 public:
  explicit Alternatives(const Found& found)
      : forecasts_(found.forecasts.begin(),
                   found.forecasts.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                 kMostAlternatives, found.result.best.size()))),
        layouts_(found.result.best.begin(), found.result.best.begin() + std::ssize(forecasts_)),
        machine_(found.forecasts.front().machine),
        figures_(steptime::figures_of(machine_)),
        here_(scores()) {}
  Alternatives(const Alternatives&) = delete;
  Alternatives& operator=(const Alternatives&) = delete;

  // The nearest; nullopt: it turns nothing, or the machine has no such constant.
  std::optional<Crossover> crossover_of(const Constant& constant) {
    scaled_.clear();
    Crossover out;
    double least = 1 / kRings.back(), most = kRings.back();
    for (const Figure& figure : figures_) {
      const double value = *figure.to;
      if (value <= figure.least ||
          std::ranges::find(constant.keys, figure.key()) == constant.keys.end())
        continue;
      scaled_.emplace_back(figure.to, value);
      out.figures.push_back(figure.key());
      least = std::max(least, figure.least / value);
      most = std::min(most, figure.most / value);
    }
    if (scaled_.empty()) return std::nullopt;
    bool counts = false;
    Side down{1, here_}, up{1, here_};
    // Outward on both sides: a slower network may be what a faster one is not, and a layout may be
    // first in a stretch between others.
    for (const double ring : kRings) {
      for (const bool faster : {false, true}) {
        Side& side = faster ? up : down;
        const double end = faster ? std::min(ring, most) : std::max(1 / ring, least);
        if (std::abs(std::log(end / side.factor)) < kNear) continue;
        const std::vector<double> there = scores_at(end);
        counts = counts || there != here_;
        for (size_t i = 1; i < there.size(); ++i) {
          if (there[i] >= there[0]) continue;
          const double factor = solve(i, side, end, there[i] - there[0]);
          if (!out.name.empty() && distance(out.factor) <= distance(factor)) continue;
          out.factor = factor;
          out.off = off_text(factor, faster ? constant.off.more : constant.off.less);
          out.name = constant.name;
          out.first = i + 1;
        }
        side = {end, there};
      }
      if (!out.name.empty() || !counts) break;
    }
    scale(1);
    return out.name.empty() ? std::nullopt : std::optional(std::move(out));
  }

 private:
  struct Side {
    double factor;  // as far as was looked
    std::vector<double> scores;
  };

  void scale(double factor) {
    for (const auto& [to, value] : scaled_) *to = factor * value;
  }
  double score_of(size_t i) {
    layouts_[i].predicted = predicted_on(machine_, forecasts_[i]);
    return layouts_[i].score();
  }
  std::vector<double> scores() {
    std::vector<double> out;
    for (size_t i = 0; i < layouts_.size(); ++i) out.push_back(score_of(i));
    return out;
  }
  std::vector<double> scores_at(double factor) {
    scale(factor);
    return scores();
  }

  // Layout i leads at `end`, by -`there`, and not at `from`: the factor from which on it does.
  double solve(size_t i, const Side& from, double end, double there) {
    const double here = std::max(0.0, from.scores[i] - from.scores[0]);
    std::uintmax_t calls = kCalls;
    const auto near = [](double a, double b) { return b - a < kNear * a; };
    const auto lead = [&](double factor) {
      scale(factor);
      return score_of(i) - score_of(0);
    };
    const bool up = end > from.factor;
    const auto [low, high] =
        boost::math::tools::toms748_solve(lead, up ? from.factor : end, up ? end : from.factor,
                                          up ? here : there, up ? there : here, near, calls);
    return up ? high : low;
  }

  static std::string off_text(double factor, const char* how) {
    const auto percent = std::llround(100 * std::abs(factor - 1));
    return (percent < 1 ? "less than 1%" : std::to_string(percent) + "%") + " " + how;
  }

  std::vector<Forecast> forecasts_;
  std::vector<Layout> layouts_;
  steptime::Machine machine_;
  std::vector<Figure> figures_;                     // of machine_
  std::vector<std::pair<double*, double>> scaled_;  // with what they are
  std::vector<double> here_;
};

}  // namespace

std::vector<Crossover> crossovers_of(const Found& found) {
  std::vector<Crossover> out;
  if (found.result.best.size() < 2) return out;
  Alternatives alternatives(found);
  for (const Constant& constant : constants())
    if (std::optional<Crossover> crossover = alternatives.crossover_of(constant))
      out.push_back(std::move(*crossover));
  std::ranges::stable_sort(out, [](const Crossover& a, const Crossover& b) {
    return distance(a.factor) < distance(b.factor);
  });
  return out;
}

}  // namespace meshwright::forecast
