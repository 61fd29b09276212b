// What a run has left in its folder, read back: as much of it as is there, and what is wrong with
// the rest.
#pragma once

#include <array>
#include <boost/json/object.hpp>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/observe/flight_recorder/verdict.h"
#include "apps/observe/report/chart.h"
#include "engine/checkpoint/inspect.h"
#include "engine/config/config.h"

namespace meshwright::runs {

// What rows of metrics.jsonl are read for, in the order in which it is shown.
enum class Quantity : uint8_t {
  loss,
  validation_loss,
  grad_norm,
  lr,
  tokens_per_second,
  step_ms,
  rank_work_ms,
  mfu,
  exposed_comm_ms,
  slowest_ms,
  memory_bytes,
  expert_imbalance,
  dropped_tokens,
};
inline constexpr size_t kQuantities = static_cast<size_t>(Quantity::dropped_tokens) + 1;
struct QuantityInfo {
  const char* key;    // in a row
  const char* title;  // "Gradient norm"
  const char* unit;   // "ms"; empty: a bare number
  bool bytes = false;
  bool may_be_log = false;      // where its values differ by orders of magnitude
  bool news = false;            // only what is not 0 is worth a curve
  bool may_be_unknown = false;  // null is no value then; else one that was not finite
};
const QuantityInfo& info_of(Quantity quantity);

// A source of a mix, or a set of the validation, by its name.
struct NamedFigure {
  std::string name;
  double value = 0;
};

struct Metrics {
  std::array<Series, kQuantities> series;  // over completed steps, which count from 1
  Series least_work, most_work;            // of rank_work_ms, over ranks, of the same steps
  double tokens = 0;                       // of all steps
  // Of a mix: what the run has read of each source, as its last step says, and the loss of each in
  // the last step that had a target of it. The validation losses of sets, as the last validation
  // says.
  std::vector<NamedFigure> source_samples, source_tokens, source_losses, validation_losses;
  const Series& of(Quantity quantity) const { return series[static_cast<size_t>(quantity)]; }
};

struct Event {
  // change: of the configuration, since the run that it goes on from.
  enum class Kind : uint8_t {
    start,
    resume,
    change,
    notice,
    warning,
    fault,
    restart,
    stop,
    saved,
    done
  };
  Kind kind = Kind::notice;
  std::string time;  // "2026-11-24T09:30:00Z"; empty: the log does not say
  int64_t step = 0;  // steps that were complete
  std::string text;  // may have several lines
};
const char* kind_name(Event::Kind kind);
// A row of a table of events: one of them, or "81 more are in run.log" in place of several.
struct EventRow {
  size_t event = 0;  // its place in the list
  std::string left_out = {};
};
// The rows for these events, in their order, at most `most` of which are shown: warnings and
// notices make room for the rest, and of each sort the first and the last stay.
std::vector<EventRow> shown_events(const std::vector<const Event*>& events, size_t most);

// How one rank spent the time that its trace covers, in microseconds. The four parts do not
// overlap: what computes while messages travel is in `overlapped` alone.
struct RankTimes {
  int64_t rank = 0, steps = 0;
  int64_t computing = 0, overlapped = 0, waiting = 0, rest = 0;
  int64_t communicating = 0;  // messages under way, hidden behind computation or not
  int64_t total() const { return computing + overlapped + waiting + rest; }
};

struct RunRecord {
  std::filesystem::path folder;
  std::string name;  // the folder as it was given
  Metrics metrics;
  std::vector<Event> events;
  std::string started, ended;                      // of the log's first and last line; or empty
  std::optional<double> seconds = {};              // that it ran; not those between two starts
  std::optional<boost::json::object> plan;         // plan.json
  std::optional<boost::json::object> environment;  // env.json
  std::optional<boost::json::object> expert_load;  // expert_load.json
  std::vector<config::Setting> settings;           // config.resolved.toml
  std::vector<checkpoint::Listed> checkpoints;
  std::vector<RankTimes> times;
  postmortem::Verdict verdict;        // of an end in an error; without sentences: there was none
  std::vector<std::string> problems;  // what is missing or broken, a sentence each

  int64_t steps() const;  // complete
  // "done", "stopped", "failed", or "unfinished": running, or killed without a word.
  std::string state() const;
  // Of config.resolved.toml; empty: it does not say.
  std::string setting(const std::string& key) const;
};

// Throws Error(file_unreadable) where there is no folder, or nothing of a run in it.
RunRecord read_run(const std::filesystem::path& folder);

// Its parts. Problems are sentences that name the file.
Metrics read_metrics(const std::filesystem::path& file, std::vector<std::string>& problems);
// The lines that read_metrics() takes, as they are in the file.
std::string metrics_taken(const std::filesystem::path& file);
struct RunLog {
  std::vector<Event> events;
  std::string first, last;             // times
  std::optional<double> seconds = {};  // between lines, but not from an end to the next start
};
RunLog read_log(const std::filesystem::path& file, std::vector<std::string>& problems);
RunLog parse_log(const std::string& text);
std::vector<RankTimes> read_traces(const std::filesystem::path& folder,
                                   std::vector<std::string>& problems);

}  // namespace meshwright::runs
