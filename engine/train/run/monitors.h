// Who watches a run beside its own folder's files: an interface that apps implement (apps/observe).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

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

// Of the rank that leads. Nothing here throws.
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

}  // namespace meshwright::train
