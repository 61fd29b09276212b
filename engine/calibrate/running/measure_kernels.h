// Kernels and layers as training runs them, timed on all ranks at once.
#pragma once

#include <functional>

#include "engine/calibrate/measured.h"
#include "meshwright/parallel/group.h"

namespace meshwright::calibrate {

// Times work of this rank's device. `seconds`: for each, about; at least two calls. `mean`: the
// mean of calls instead of their median. Where ranks share cores a call has one or waits for it,
// and what is between lies in the mean alone.
class Stopwatch {
 public:
  Stopwatch(World& world, double seconds, bool mean = false)
      : world_(world), seconds_(seconds), mean_(mean) {}
  at::Device device() const { return world_.device(); }
  // Collective: all ranks begin together, since those of a host share its memory. Seconds of one
  // call.
  double of(const std::function<void()>& work);

 private:
  void wait_for_device() const;
  World& world_;
  double seconds_;
  bool mean_;
};

// Collective. Fill in the seconds (and the bytes) of one point.
void measure(Stopwatch& watch, ProductTime& point);
void measure(Stopwatch& watch, MovedTime& point);
void measure(Stopwatch& watch, AttentionTime& point);
void measure(Stopwatch& watch, ModelTime& point);
// On a device, of two ranks or more. Collective over the world: all-gathers of all ranks, as many
// as about half of the products' time takes.
void measure(World& world, BesideTime& point);

}  // namespace meshwright::calibrate
