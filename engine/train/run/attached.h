// What of the apps a run needs while it trains. The engine is built and trains without any of it;
// an app that is linked into libmeshwright_engine.so sets its part when that is loaded
// (apps/*/entry.cpp).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/job/plan.h"
#include "engine/train/run/monitors.h"

namespace meshwright::train {

// A step as the machine's figures have it.
struct PredictedStep {
  std::string machine;
  double ranks_per_host = 0;
  double seconds = 0;
  std::vector<std::pair<std::string, double>> parts;  // seconds, in the order they are shown
  std::vector<std::string> rough;  // why it is rougher than docs/step_time.md promises
};

// What model FLOPs utilization is made of.
struct ComputeFacts {
  double flop_a_token = 0;  // 0: a model without the sizes that the formula wants
  double width = 4;         // bytes of an element in the job's products
  double peak = 0;          // operations a second of the device; 0: a processor, or not known
};

struct Attached {
  // nullptr: nobody watches.
  std::unique_ptr<RunMonitors> (*monitors)(const MonitorSettings&, RunMonitors::Say) = nullptr;
  // What an earlier run of the name left for a new one to begin afresh gets the number of `kept`
  // (metrics.3.jsonl). Throws Error(output_unwritable).
  void (*keep_earlier)(const std::filesystem::path& folder,
                       const std::filesystem::path& kept) = nullptr;
  // Who waited for whom when the run of a folder ended, a line each; empty: nothing new.
  std::string (*verdict)(const std::filesystem::path& folder) = nullptr;
  // `device`: its name, as the driver has it; empty: a processor. nullopt: nobody has named a
  // machine (report.machine) and none is known by that name. Throws Error for one that cannot be
  // had.
  std::optional<PredictedStep> (*predict)(const plan::Job&, const plan::JobPlan&,
                                          const std::string& device,
                                          int64_t ranks_a_host) = nullptr;
  ComputeFacts (*compute)(const plan::Job&, const plan::JobPlan&, int64_t seq_len,
                          const std::string& device) = nullptr;
};

Attached& attached();

}  // namespace meshwright::train
