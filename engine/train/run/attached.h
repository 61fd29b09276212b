// What apps and the engine's library are to each other: what of the apps a run needs while it
// trains, and how their functions that the program calls on ranks are run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/job/plan.h"

namespace meshwright::rendezvous {
class Ending;
}

namespace meshwright::train {

struct RunFacts {
  std::string run, strategy, version;
  int64_t ranks = 1, max_steps = 0, completed = 0;  // steps at the start
};

// What [report] asks for.
struct MonitorSettings {
  std::filesystem::path folder;      // of the run, which has metrics.jsonl
  std::optional<int64_t> completed;  // steps that the run continues behind; nothing: a new one
  bool tensorboard = false, csv = false;
  std::string prometheus_file;  // empty: none
  std::string host;             // to listen at; empty: nowhere
  int port = 0;
  std::string configuration;  // as TOML
  RunFacts facts;

  bool asks_for_any() const {
    return tensorboard || csv || !prometheus_file.empty() || !host.empty();
  }
};

// Who watches a run beside its own folder's files. Of the rank that leads. Nothing here throws.
class RunMonitors {
 public:
  // `say`: a line for people: the first failure of each place, and that it works again.
  using Say = std::function<void(const std::string&)>;
  RunMonitors() = default;
  virtual ~RunMonitors() = default;
  RunMonitors(const RunMonitors&) = delete;
  RunMonitors& operator=(const RunMonitors&) = delete;
  // As it is in metrics.jsonl, in which it is already.
  virtual void row(std::string_view line) = 0;
  virtual void saved(int64_t completed, bool good) = 0;
  // Of the last step nothing is still to come.
  virtual void flush() = 0;
  // Nothing more comes. `finished`: all steps of the run are done.
  virtual void end(bool finished) = 0;
};

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

// The engine is built and trains without any of it; an app that is linked into
// libmeshwright_engine.so sets its part when that is loaded (apps/*/entry.cpp).
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

inline Attached& attached() {
  static Attached all;
  return all;
}

// LibTorch writes pages of stack frames to standard error before it throws what we then say in one
// line. For the program and libmeshwright_c.so: a C++ application that uses the library keeps its
// own choice. TORCH_CPP_LOG_LEVEL brings them back.
void quiet_libtorch();

// Runs a rank; what it throws is said, told to the other ranks, and becomes the exit status of all.
// `log`: of the run, once it has one; read after `work` has ended.
int run_guarded(const std::function<int(rendezvous::Ending&)>& work,
                const std::filesystem::path& log = {});

}  // namespace meshwright::train
