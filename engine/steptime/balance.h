// Slips of the unit in a machine file whose figures are each within what some machine has: peaks
// beside the bandwidth of the memory, and what a processor may have and no device.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/steptime/machine.h"

namespace meshwright::steptime {

// Operations that a device has for a byte of its memory: shipped files have 10 to 850.
inline constexpr double kMostForAByte = 5000;

struct Peak {
  const char* name;
  double value, least;  // operations for a byte

  std::string key() const { return std::string("peak.") + name; }
  bool low(double bandwidth) const { return value < least * bandwidth; }
  bool fits(double bandwidth) const {
    return !low(bandwidth) && value <= kMostForAByte * bandwidth;
  }
};

// Those that have to fit to the bandwidth. Of a processor it is the fastest alone: a type that it
// has no instructions for takes a hundred times as long; and caches count into its bandwidth.
std::vector<Peak> peaks_that_fit(const Machine& machine);

struct Slip {
  bool of_memory = false;
  std::string mended;  // "device.bandwidth = 3.35e+12"; empty: nobody knows
};

// What makes the peaks that are `off` fit: another of the usual units of theirs, or of a bandwidth
// that memory of such machines has. `low`: they are too small, else too large; `all`: there are no
// others.
Slip slip_of(const Machine& machine, const std::vector<Peak>& off, bool low, bool all);

// No device of today or of the next years has more, and none takes longer; nor has any less.
struct DeviceRange {
  const char* key;
  double most;
  const char* unit;  // what it is counted in
  double units;      // so many times as much as what it may have been given in; 0: nobody knows
  double least = 0;
};
inline constexpr double kBits = 8;
// nullptr: what any machine may have is all that is known.
const DeviceRange* range_of_devices(std::string_view key);
// The value, were it in that unit; 0: it would be too much still, or nobody knows.
double in_other_unit(const DeviceRange& of, double value);

}  // namespace meshwright::steptime
