// Which constant of the machine would put another layout before the first, and by how much it
// would have to be off: both are predicted again with one constant scaled at a time.
#include <algorithm>
#include <array>
#include <boost/math/tools/toms748_solve.hpp>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "apps/performance/forecast/layouts.h"
#include "apps/performance/steptime/figures.h"

namespace meshwright::forecast {
namespace {

using steptime::Figure;
using steptime::Layout;

// Times and a time: what is off by more is another machine.
constexpr std::array<double, 4> kRings = {1.1, 1.25, 1.5, 2};
constexpr double kNear = 0.002;  // of a factor, which is shown in whole percent
constexpr std::uintmax_t kCalls = 20;

// Figures of a machine that are off together.
struct Constant {
  const char *name, *more, *less;
  std::vector<std::string> keys;
};
const std::vector<Constant>& constants() {
  static const std::vector<Constant> kAll = {
      {"products and attention",
       "faster",
       "slower",
       {"peak.bf16", "peak.fp8", "peak.fp32", "peak.tf32"}},
      {"attention", "faster", "slower", {"rate.attention"}},
      {"memory", "faster", "slower", {"device.bandwidth"}},
      {"element-wise kernels", "faster", "slower", {"rate.elementwise"}},
      {"the optimizer", "faster", "slower", {"rate.optimizer"}},
      {"the network inside a host", "faster", "slower", {"network.bus"}},
      {"the network between hosts", "faster", "slower", {"network.nic"}},
      {"the messages of a pipeline",
       "faster",
       "slower",
       {"network.send_inside", "network.send_outside"}},
      {"the steps of collectives",
       "longer",
       "shorter",
       {"network.step_inside", "network.step_outside"}},
      {"the launches of a layer",
       "longer",
       "shorter",
       {"host.layer_forward", "host.layer_backward"}},
      {"what kernels lose beside collectives", "more", "less", {"overlap.kappa"}},
      {"what ranks gain while others wait", "more", "less", {"overlap.alone"}}};
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
      if (value <= figure.least || std::find(constant.keys.begin(), constant.keys.end(),
                                             figure.key()) == constant.keys.end())
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
          out.off = off_text(factor, faster ? constant.more : constant.less);
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
  std::stable_sort(out.begin(), out.end(), [](const Crossover& a, const Crossover& b) {
    return distance(a.factor) < distance(b.factor);
  });
  return out;
}

}  // namespace meshwright::forecast
