#include "engine/steptime/balance.h"

#include <algorithm>
#include <iterator>

#include "engine/config/toml_value.h"

namespace meshwright::steptime {
namespace {

std::string setting(const std::string& key, double value) {
  return key + " = " + config::to_toml(config::number_value(value));
}

}  // namespace

std::vector<Peak> peaks_that_fit(const Machine& m) {
  const bool processor = m.overlap.adds;
  const double least = processor ? 0.1 : 2, of_float32 = processor ? 0.1 : 0.2;
  std::vector<Peak> out{{"bf16", m.peak_bf16, least},
                        {"fp8", m.peak_fp8, least},
                        {"fp32", m.peak_fp32, of_float32},
                        {"tf32", m.peak_tf32, of_float32}};
  std::erase_if(out, [](const Peak& peak) { return peak.value == 0; });
  if (!processor || out.empty()) return out;
  const Peak fastest =
      *std::max_element(out.begin(), out.end(),
                        [](const Peak& one, const Peak& other) { return one.value < other.value; });
  return {fastest};
}

Slip slip_of(const Machine& machine, const std::vector<Peak>& off, bool low, bool all) {
  for (const double unit : {1e3, 1e6, 1e9}) {
    const double other = low ? machine.bandwidth / unit : machine.bandwidth * unit;
    const bool is_memory =
        machine.overlap.adds ? other >= 1e8 && other <= 2e12 : other >= 2e10 && other <= 1e14;
    if (all && is_memory &&
        std::all_of(off.begin(), off.end(), [&](const Peak& peak) { return peak.fits(other); }))
      return {true, setting("device.bandwidth", other)};
    bool fit = true;
    std::string mended;
    for (Peak peak : off) {
      peak.value = low ? peak.value * unit : peak.value / unit;
      fit = fit && peak.fits(machine.bandwidth);
      mended += (mended.empty() ? "" : " and ") + setting(peak.key(), peak.value);
    }
    if (fit) return {false, mended};
  }
  return {};
}

const DeviceRange* range_of_devices(std::string_view key) {
  static constexpr DeviceRange kRanges[] = {
      {"device.memory", 4e12, "in bytes, 1e9 a gigabyte", 1e3},
      {"device.units", 1000, "streaming multiprocessors, not CUDA cores", 0},
      {"network.bus", 2e12, "in bytes, not bits", kBits, 1e9},
      {"network.nic", 200e9, "in bytes, not bits", kBits, 1e7},
      {"network.nic_attained", 1, "as a share of 1", 0, 0.1},
      {"network.send_outside", 200e9, "in bytes, not bits", kBits},
      {"network.step_inside", 1e-3, "in seconds, not milliseconds", 1e3},
      {"network.step_outside", 2e-3, "in seconds, not milliseconds", 1e3},
      {"network.send_latency_inside", 1e-3, "in seconds, not milliseconds", 1e3},
      {"network.send_latency_outside", 2e-3, "in seconds, not milliseconds", 1e3},
      {"host.layer_forward", 0.05, "in seconds, not milliseconds", 1e3},
      {"host.layer_backward", 0.05, "in seconds, not milliseconds", 1e3},
      {"host.fixed", 1, "in seconds, not milliseconds", 1e3},
  };
  const auto* const found = std::find_if(std::begin(kRanges), std::end(kRanges),
                                         [&](const DeviceRange& one) { return key == one.key; });
  return found == std::end(kRanges) ? nullptr : found;
}

double in_other_unit(const DeviceRange& of, double value) {
  if (of.units == 0) return 0;
  const double other = value / of.units;
  return other <= of.most ? other : 0;
}

}  // namespace meshwright::steptime
