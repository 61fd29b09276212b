// Which constant of the machine would put another layout before the first, and by how much it
// would have to be off: both are predicted again with one constant scaled at a time.
#include <algorithm>
#include <boost/math/tools/toms748_solve.hpp>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/forecast/layouts.h"
#include "engine/steptime/figures.h"

namespace meshwright::forecast {
namespace {

using steptime::Figure;
using steptime::Layout;

constexpr double kMostOff = 2;   // times and a time: what is off by more is another machine
constexpr double kNear = 0.002;  // of a factor, which is shown in whole percent
constexpr std::uintmax_t kCalls = 20;
constexpr size_t kMostRivals = 10;  // of the first

// Figures of a machine that are off together.
struct Constant {
  const char *name, *more, *less;
  std::vector<std::string> keys;
};
const std::vector<Constant>& constants() {
  static const std::vector<Constant> kAll = {
      {"products and attention", "faster", "slower", {"peak.bf16", "peak.fp8", "peak.fp32"}},
      {"attention", "faster", "slower", {"rate.attention"}},
      {"memory", "faster", "slower", {"device.bandwidth"}},
      {"the network inside a host", "faster", "slower", {"network.bus"}},
      {"the network between hosts", "faster", "slower", {"network.nic"}},
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

class Rivals {
 public:
  // `other`: its place behind the first of `found`, which has place 0.
  Rivals(const Found& found, size_t other)
      : forecasts_{&found.forecasts[0], &found.forecasts[other]},
        machine_(found.forecasts.front().machine),
        figures_(steptime::figures_of(machine_)),
        layouts_{found.result.best[0], found.result.best[other]},
        lead_(std::max(0.0, lead())) {}
  Rivals(const Rivals&) = delete;
  Rivals& operator=(const Rivals&) = delete;

  // nullopt: it turns nothing, or the machine has no such constant.
  std::optional<Turn> turn_of(const Constant& constant) {
    std::vector<std::pair<double*, double>> scaled;  // with what they are
    Turn out;
    double least = 1 / kMostOff, most = kMostOff;
    for (const Figure& figure : figures_) {
      const double value = *figure.to;
      if (value <= figure.least || std::find(constant.keys.begin(), constant.keys.end(),
                                             figure.key()) == constant.keys.end())
        continue;
      scaled.emplace_back(figure.to, value);
      out.figures.push_back(figure.key());
      least = std::max(least, figure.least / value);
      most = std::min(most, figure.most / value);
    }
    if (scaled.empty()) return std::nullopt;
    const auto lead_at = [&](double factor) {
      for (const auto& [to, value] : scaled) *to = factor * value;
      return lead();
    };
    // What is slower one way is faster the other: where one end turns the order, that is all.
    for (const double end : {least, most}) {
      if (distance(end) < kNear) continue;
      const double there = lead_at(end);
      if (there < 0) {
        out.factor = solve(lead_at, end, there);
        out.off = off_text(out.factor, end > 1 ? constant.more : constant.less);
        out.name = constant.name;
        break;
      }
      if (end < 1 && there == lead_) break;  // no effect
    }
    for (const auto& [to, value] : scaled) *to = value;
    return out.name.empty() ? std::nullopt : std::optional(std::move(out));
  }

 private:
  // By how much the first is ahead on the machine as it is scaled now; below 0: it is not.
  double lead() {
    for (size_t i = 0; i < 2; ++i) layouts_[i].predicted = predicted_on(machine_, *forecasts_[i]);
    return layouts_[1].score() - layouts_[0].score();
  }

  // Between 1 and `end`, where the other leads: the factor from which on it does.
  template <class Lead>
  double solve(const Lead& lead_at, double end, double there) const {
    std::uintmax_t calls = kCalls;
    const auto near = [](double a, double b) { return b - a < kNear * a; };
    const bool up = end > 1;
    const auto [from, to] = boost::math::tools::toms748_solve(
        lead_at, up ? 1 : end, up ? end : 1, up ? lead_ : there, up ? there : lead_, near, calls);
    return up ? to : from;
  }

  static std::string off_text(double factor, const char* how) {
    const auto percent = std::llround(100 * std::abs(factor - 1));
    return (percent < 1 ? "less than 1%" : std::to_string(percent) + "%") + " " + how;
  }

  const Forecast* forecasts_[2];
  steptime::Machine machine_;
  std::vector<Figure> figures_;  // of machine_
  Layout layouts_[2];
  double lead_;
};

}  // namespace

std::vector<Turn> turns_of(const Found& found) {
  std::vector<Turn> out;
  const size_t count = std::min(found.result.best.size(), kMostRivals);
  for (const Constant& constant : constants()) {
    std::optional<Turn> nearest;
    for (size_t other = 1; other < count; ++other) {
      std::optional<Turn> turn = Rivals(found, other).turn_of(constant);
      if (!turn || (nearest && distance(nearest->factor) <= distance(turn->factor))) continue;
      nearest = std::move(turn);
      nearest->first = other + 1;
    }
    if (nearest) out.push_back(std::move(*nearest));
  }
  std::stable_sort(out.begin(), out.end(), [](const Turn& a, const Turn& b) {
    return distance(a.factor) < distance(b.factor);
  });
  return out;
}

}  // namespace meshwright::forecast
