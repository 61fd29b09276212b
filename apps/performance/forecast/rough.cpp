// Why a forecast is rougher than docs/step_time.md promises.
#include <algorithm>

#include "apps/performance/forecast/forecast.h"
#include "apps/performance/steptime/figures.h"

namespace meshwright::forecast {
namespace {

// A figure that is off by so much changes what is made of it, whatever else bounds the step.
constexpr double kFarOff = 1000;

// Those of the machine's figures that the forecast goes by, with commas: with another value of them
// it is another one.
std::string in_use(const Forecast& f, const std::vector<std::string>& keys) {
  std::string out;
  if (keys.empty()) return out;
  steptime::Machine machine = f.machine;
  const std::vector<steptime::Figure> figures = steptime::figures_of(machine);
  auto seconds = [&] {
    return predicted_on(machine, f, steptime::Bubble::closed_form).seconds;  // has every figure
  };
  const double before = seconds();
  for (const std::string& key : keys) {
    const auto figure =
        std::find_if(figures.begin(), figures.end(),
                     [&](const steptime::Figure& candidate) { return candidate.key() == key; });
    if (figure == figures.end()) continue;
    const double was = *figure->to;
    auto changes = [&](double value) {
      *figure->to = value;
      const bool changed = seconds() != before;
      *figure->to = was;
      return changed;
    };
    // What a job may have of the memory, and how many ranks a host has, are in no second.
    const bool always = key == "device.memory" || key == "device.outside" ||
                        (key == "network.ranks_per_host" && f.job.ranks > 1);
    if (always || changes(was > 0 ? was / kFarOff : figure->most) || changes(was * kFarOff))
      out += (out.empty() ? "" : ", ") + key;
  }
  return out;
}

}  // namespace

std::vector<std::string> rough_of(const Forecast& f) {
  std::vector<std::string> out;
  const steptime::LayerTime layer = steptime::layer_time(f.machine, f.shape, f.job);
  if (f.shape.experts > 0) out.emplace_back("experts: within a fifth");
  if (f.job.cp > 4) out.emplace_back("cp over 4: within 12%");
  if (f.job.fp8)
    out.emplace_back(
        "8-bit floats: the bytes of their casts are counted, no run has measured them");
  if (f.job.offload.on)
    out.emplace_back("states on the host: the rates of its link and memory are guessed");
  const double device =
      layer.forward.sum() + layer.backward.sum() - layer.forward.host - layer.backward.host;
  if (device < 1.5e-3 && f.machine.peak_bf16 > 1e13)
    out.emplace_back("layers under 1.5 ms: the host decides, measure it");
  if (const std::string names = in_use(f, f.machine.guessed); !names.empty())
    out.push_back("guessed figures of the machine: " + names);
  if (const std::string names = in_use(f, f.machine.at_bound); !names.empty())
    out.push_back("figures of the machine that were left at a bound: " + names);
  return out;
}

}  // namespace meshwright::forecast
