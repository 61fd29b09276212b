// A row of metrics.jsonl, for what shows it elsewhere: files for other programs, monitors.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/observe/prometheus/prometheus_part.h"
#include "engine/train/run/attached.h"

namespace meshwright::monitor {

struct Row {
  int64_t completed = 0;       // steps
  boost::json::object fields;  // all of them: "step" and "completed_steps" too
  bool is_step() const { return fields.contains("loss"); }
};

// Nothing: this is no row. A newline at the end does not matter.
std::optional<Row> parse_row(std::string_view line);

// A number; NaN for null, which stands for one that was not finite; the largest of a list. Nothing:
// it is neither.
std::optional<double> number_of(const boost::json::value& value);

// Whether the field says which row it is, not what was measured.
inline bool counts_rows(std::string_view name) {
  return name == "step" || name == "completed_steps";
}

// How fields of metrics.jsonl are called elsewhere.

struct Name {
  std::string tag;         // of TensorBoard: "speed/step_ms"; empty: it is not shown there
  std::string prometheus;  // "meshwright_step_seconds"; empty likewise
  std::string help;        // a sentence
  double divisor = 1;      // what it is divided by for Prometheus' base units
  bool counter = false;    // Prometheus is told the sum over all rows
};

// A field that no table knows has a name by rule: its ending says its unit.
Name name_of(std::string_view field);

// What Prometheus is told of a run: the newest value of each number, under Prometheus' names.

using RunFacts = train::RunFacts;

// One thread changes it; readings() may be called by others at any time. The one that changes it
// never waits for them.
class Numbers {
 public:
  explicit Numbers(const RunFacts& facts);
  void row(const Row& row);
  // A checkpoint of so many steps, or none in its place.
  void saved(int64_t completed, bool good);
  void end(bool finished);
  std::vector<prometheus::Reading> readings() const;

 private:
  struct Shown {
    const Name* name;
    double value;
  };
  void set(const std::string& key, double value);
  void publish();
  std::vector<std::pair<std::string, std::string>> labels_;
  prometheus::Reading info_;
  std::deque<Name> names_;  // stay where they are
  std::map<std::string, size_t>
      at_;  // in now_: of what is its own, and of fields, with a dot before
  std::vector<Shown> now_;
  mutable std::mutex mutex_;
  std::vector<Shown> published_;
};

}  // namespace meshwright::monitor
