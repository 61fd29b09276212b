// The figures of a machine file, corrected by what a step of a run took. Pure: tests make runs up.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "apps/performance/calibrate/fit.h"
#include "apps/performance/steptime/machine.h"
#include "apps/performance/steptime/predict.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::calibrate {

// A correction beyond this is none: something else than the figures is wrong.
inline constexpr double kMostFactor = 4;

// What a run measured, and what is needed to read it.
struct RunTime {
  std::string run, machine;       // its folder, and the machine file, as they were given
  double seconds = 0;             // of a step, the median
  std::optional<double> exposed;  // of these, in which rank 0 did nothing but communicate
  bool waits_for_work = false;    // that is also for the work of other ranks: of a pipeline
  bool halves = false;            // computes in two bytes or fewer an element
};

struct FromRun {
  Fitted fitted;                  // has no points
  double computing = 1;           // times as fast as the machine file has it
  std::optional<double> network;  // the same; nullopt: its figures are left
  std::string left;               // why
};

// Products, attention and kernels that move bytes so many times as fast, and the network. Where
// ranks and collectives share cores these are peaks, bandwidth and launches of the processor; of a
// device the shares of its maker's peaks, up to 1.
steptime::Machine scaled(steptime::Machine machine, double computing, double network);

// Seconds of a step in which nothing but exchanges happens.
double exposed_of(const steptime::Parts& parts);

// A step is one number: it gives one factor of all that computes. A second one, of the network, is
// had where the run says how long rank 0 waited, and a twentieth of the step or more is predicted
// to be exchanges. `predict`: of the run's own job. `when`: for the sources, "2026-11-26". Throws
// Error(out_of_range) where no factor from 1/4 to 4 explains the step.
FromRun fit_run(const steptime::Machine& machine, const RunTime& run,
                const std::function<steptime::Prediction(const steptime::Machine&)>& predict,
                const std::string& when);

// What was measured, as tables for people or one object for machines.

// "1.25e+11 operations a second" is for files; people read what its unit is short for.
std::string figure_text(const steptime::Figure& figure);
// A file's name as --machine takes it: without a slash or ".toml" it would be that of a machine.
std::string as_machine(const std::string& file);

struct Report {
  Measured measured;
  Fitted fitted;
  std::string file;
  double seconds = 0;  // that it took

  std::string text(const report::Style& style) const;
  boost::json::object json() const;
};

// What a run corrected in a machine file, as tables for people or one object for machines.

struct RunReport {
  RunTime run;
  int64_t steps = 0;          // that the median is of
  steptime::Machine machine;  // as it was
  FromRun found;
  std::string file;
  steptime::Prediction before, after;  // of the run's job; `after` with the file as it was written

  std::string text(const report::Style& style) const;
  boost::json::object json() const;
};

}  // namespace meshwright::calibrate
