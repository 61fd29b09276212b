// Peaks of a machine file beside the bandwidth of its memory: a slip of the unit in one of them
// shows there, though each is within what some machine has.
#pragma once

#include <string>
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

}  // namespace meshwright::steptime
