// From times to the figures of a machine file. Pure: tests make times up.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/performance/calibrate/measured.h"
#include "apps/performance/steptime/machine.h"
#include "apps/performance/steptime/predict.h"

namespace meshwright::calibrate {

// What is not measured comes from here.
struct Shipped {
  steptime::Machine machine;
  // The driver calls the device so: its peaks, bandwidth and sizes are the maker's, and what is
  // measured are shares of them. False: they are of some other device, and peaks are what products
  // attain here.
  bool same_device = false;
};

// One time, and what the model says of it with the fitted figures.
struct Point {
  std::string what;                    // "product bf16 backward"
  std::string size;                    // "1024 x 4096 x 4096"
  double measured = 0, predicted = 0;  // seconds

  double error() const { return measured > 0 ? predicted / measured - 1 : 0; }
};

struct Fitted {
  steptime::Machine machine;
  std::map<std::string, std::string> sources;  // of each figure that the file has, by its key
  std::vector<Point> points;

  bool measured(const std::string& key) const { return is_from(key, "measured"); }
  // Measured, too, but what was found lies beyond what the figure may be.
  bool at_bound(const std::string& key) const { return is_from(key, steptime::kAtBound); }

 private:
  bool is_from(const std::string& key, std::string_view begin) const;
};

// A value within the bounds of its figure. `beyond`: what was found lies outside of them, so that
// it is noise of what else ran, or nothing that the model knows.
struct Bounded {
  double value = 0;
  bool beyond = false;
};
Bounded bounded(double found, double least, double most);

// `when`, `where`: for the sources, "2026-11-26" and a host's name.
Fitted fit(const Measured& measured, const Shipped& shipped, const std::string& when,
           const std::string& where);

// What the model says of a layer of `model` in float32, with the engine's own kernels.
steptime::LayerTime model_layer(const steptime::Machine& machine, const ModelTime& model);

// What products lose to collectives beside them, as a share of the time of these, 0 to 1. nullopt:
// it was not measured, or the collectives took longer than the products that should hide them.
std::optional<double> kappa_of(const BesideTime& time);

// seconds = x a + y b
struct Sample {
  double a = 0, b = 0, seconds = 0;
};
struct Line {
  double x = 0, y = 0;
};
// x and y of at least 0 for which the relative errors have the least sum of squares. Samples
// without seconds do not count; without any both are 0.
Line fit_line(std::span<const Sample> samples);

struct NetworkFigure {
  std::string_view name;  // "bus"
  bool at_bound = false;  // see Bounded
};
// Sets what `measured` has groups for, and returns these figures.
std::vector<NetworkFigure> fit_network(const Measured& measured, steptime::Machine& machine);
// The collectives and messages that the model knows, beside what it says of them.
std::vector<Point> network_points(const Measured& measured, const steptime::Machine& machine);

}  // namespace meshwright::calibrate
