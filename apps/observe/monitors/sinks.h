// Where the rows of metrics.jsonl go beside it.
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

#include "apps/observe/monitors/numbers.h"
#include "apps/observe/prometheus/prometheus_part.h"
#include "sdk/base/files/durable.h"

namespace meshwright::monitor {

// metrics.jsonl as CSV (RFC 4180): a line a step, for spreadsheets and data frames.

// "step", "completed_steps", the fields of steps as they come, "validation_loss".
std::vector<std::string> csv_columns(std::string_view jsonl);

// Rows into lines. A validation comes in a row of its own and goes into the line of its step, which
// therefore is held until the next row.
class CsvLines {
 public:
  explicit CsvLines(std::vector<std::string> columns) : columns_(std::move(columns)) {}
  std::string header() const;
  bool has_columns_for(const Row& row) const;
  // The line that is complete now, or nothing. Fields without a column are left out.
  std::string add(const Row& row);
  // The line that was held, or nothing.
  std::string rest();

 private:
  std::vector<std::string> columns_, held_;
  int64_t held_steps_ = -1;
};

// A whole file; lines that are no rows are left out.
std::string csv_of(std::string_view jsonl);

// An event file as TensorBoard reads it: records of TensorFlow's framing, each a protobuf `Event`.
// Fields and numbers are those of tensorflow/core/util/event.proto and
// tensorflow/core/framework/summary.proto; the framing is that of
// tensorflow/core/lib/io/record_writer.h.

// length (8 bytes), its masked CRC-32C (4), data, their masked CRC-32C (4); little-endian.
std::string event_record(std::string_view data);

// Each call is one write to the system: whoever reads along sees it at once. All throw
// Error(output_unwritable), and leave whole records.
class EventFile {
 public:
  // Makes events.out.tfevents.<seconds>.<host>.<process>.meshwright in `folder`, a name that sorts
  // behind all that are there. `first_step`: whatever older files say of it and of later steps is
  // void.
  EventFile(const std::filesystem::path& folder, int64_t first_step);
  const std::filesystem::path& path() const { return file_->path(); }
  void scalars(int64_t step, const std::vector<std::pair<std::string, double>>& tags_and_values);
  // Markdown.
  void text(int64_t step, std::string_view tag, std::string_view markdown);
  bool removed() const { return file_->removed(); }

 private:
  void append(std::string_view records) const;
  std::optional<base::AppendFile> file_;
};

// Prometheus' text format, for node_exporter's textfile collector.

std::string prometheus_text(const std::vector<prometheus::Reading>& readings);

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
