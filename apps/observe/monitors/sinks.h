// Where the rows of metrics.jsonl go beside it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "apps/observe/monitors/numbers.h"

namespace meshwright::monitor {

// One place that hears of a run while it trains. Everything here may throw: Monitors tells it, and
// training goes on.

class Sink {
 public:
  virtual ~Sink() = default;
  // Where it writes: a path, an address.
  virtual std::string place() const = 0;
  virtual std::string key() const = 0;  // "report.csv"
  // Before any row; again after a failure of it.
  virtual void open() = 0;
  // `line`: the row as it is in metrics.jsonl.
  virtual void row(const Row& row, std::string_view line) = 0;
  // What was held back is written: nothing of the last step is still to come.
  virtual void flush() {}
  // Nothing more comes. `finished`: all steps of the run are done.
  virtual void end(bool finished) = 0;
  // After a failure of open().
  virtual bool may_try_again() const { return true; }
  // Rows that came while it could not write are not made up for.
  virtual bool misses_rows() const { return false; }
};

// The places that a run can be watched at: report.csv, report.tensorboard, report.prometheus_file
// and report.prometheus.

// metrics.csv beside metrics.jsonl, and made from it: at the start, when a row brings a new column,
// and after it could not be written.
std::unique_ptr<Sink> csv_file(const std::filesystem::path& folder);

// <folder>/tensorboard. `completed`: steps that are kept of what is there; nothing: a new run.
// `configuration`: shown as text.
std::unique_ptr<Sink> tensorboard(const std::filesystem::path& folder,
                                  std::optional<int64_t> completed, std::string configuration);

// `path`: of a .prom file, or of a folder, in which it is meshwright_<run>.prom. Written at most
// once in a second.
std::unique_ptr<Sink> prometheus_file(const std::filesystem::path& path, const std::string& run,
                                      std::shared_ptr<const Numbers> numbers);

// `listens`: hears where, once it does.
std::unique_ptr<Sink> prometheus_endpoint(std::string host, int port,
                                          std::shared_ptr<const Numbers> numbers,
                                          std::function<void(const std::string&)> listens);

}  // namespace meshwright::monitor
