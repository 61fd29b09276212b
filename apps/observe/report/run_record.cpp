#include "apps/observe/report/run_record.h"

#include <algorithm>
#include <array>
#include <boost/json/monotonic_resource.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include "apps/observe/monitors/numbers.h"
#include "engine/config/config.h"
#include "engine/config/toml_value.h"
#include "meshwright/error.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::runs {

namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

bool is_file(const fs::path& path) {
  std::error_code failed;
  return fs::is_regular_file(path, failed);
}

// Runs that a folder holds, for help: at most a few.
std::vector<std::string> runs_in(const fs::path& folder) {
  std::vector<std::string> out;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed))
    if (is_file(at->path() / "metrics.jsonl") || is_file(at->path() / "run.log"))
      out.push_back(at->path().string());
  std::sort(out.begin(), out.end());
  return out;
}

Error no_run(const fs::path& folder, const std::string& why) {
  Error error(ErrorCode::file_unreadable, folder.string() + " " + why);
  std::error_code failed;
  const bool there = fs::is_directory(folder, failed);
  const fs::path around = there                      ? folder
                          : folder.has_parent_path() ? folder.parent_path()
                                                     : fs::path("runs");
  std::vector<std::string> runs = runs_in(around);
  if (std::string near = nearest_name(folder.string(), runs); !there && !near.empty())
    error.help("did you mean " + near + "?");
  else if (runs.size() > 8)
    error.help("name some of its runs: " + runs[0] + " " + runs[1]);
  else if (!runs.empty()) {
    std::string all;
    for (const std::string& run : runs) all += " " + run;
    error.help("name runs: meshwright report" + all);
  }
  return error.help("the folder of a run is <run.dir>/<run.name>: runs/first, for example");
}

bool is_there(const fs::path& path) {
  std::error_code failed;
  return fs::exists(fs::symlink_status(path, failed));
}

// What it holds; nullopt, with a problem, where it is there and cannot be read.
std::optional<std::string> contents_of(const fs::path& file, size_t most, const std::string& lost,
                                       std::vector<std::string>& problems) {
  base::ForeignFile opened(file);
  std::string text = opened.read(most);
  if (opened.problem().empty()) return text;
  problems.push_back(file.string() + " " + opened.problem() + (lost.empty() ? "" : ": " + lost));
  return std::nullopt;
}

std::optional<json::object> read_json(const fs::path& file, const char* lost,
                                      std::vector<std::string>& problems) {
  if (!is_there(file)) {
    if (lost != nullptr) problems.push_back(file.string() + " is not there: " + lost);
    return std::nullopt;
  }
  const std::optional<std::string> text =
      contents_of(file, base::kSmallFile, lost == nullptr ? "" : lost, problems);
  if (!text) return std::nullopt;
  boost::system::error_code failed;
  json::value value = json::parse(*text, failed);
  if (!failed && value.is_object()) return std::move(value.as_object());
  problems.push_back(file.string() + " is damaged (" +
                     (failed ? failed.message() : "it holds no object") + ")" +
                     (lost != nullptr ? std::string(": ") + lost : ""));
  return std::nullopt;
}

std::vector<config::Setting> read_settings(const fs::path& file,
                                           std::vector<std::string>& problems) {
  if (!is_there(file)) {
    problems.push_back(file.string() + " is not there: the configuration is left out");
    return {};
  }
  const std::optional<std::string> text =
      contents_of(file, config::kMaxFileBytes, "the configuration is left out", problems);
  if (!text) return {};
  Diagnostics diagnostics;
  std::vector<config::Setting> out = config::settings_of(*text, file.string(), diagnostics);
  if (!diagnostics.ok())
    problems.push_back(file.string() + " is damaged (" + diagnostics.errors()[0].message() +
                       "): the configuration is left out");
  return out;
}

std::vector<checkpoint::Listed> read_checkpoints(const fs::path& folder,
                                                 std::vector<std::string>& problems) {
  std::error_code failed;
  if (!fs::is_directory(folder, failed)) return {};
  try {
    std::vector<checkpoint::Group> groups = checkpoint::list_checkpoints(folder);
    return groups.empty() ? std::vector<checkpoint::Listed>() : std::move(groups[0].checkpoints);
  } catch (const Error& error) {
    // A folder that no save has filled yet is none to complain of.
    if (error.code() != ErrorCode::no_checkpoint) problems.push_back(error.message());
    return {};
  }
}

}  // namespace

int64_t RunRecord::steps() const {
  int64_t out = 0;
  for (const Series& series : metrics.series)
    if (!series.empty()) out = std::max(out, static_cast<int64_t>(series.steps.back()));
  return out;
}

std::vector<EventRow> shown_events(const std::vector<const Event*>& events, size_t most) {
  std::vector<size_t> told, rest;
  for (size_t i = 0; i < events.size(); ++i)
    (events[i]->kind == Event::Kind::warning || events[i]->kind == Event::Kind::notice ? rest
                                                                                       : told)
        .push_back(i);
  std::vector<bool> shown(events.size(), false);
  auto show = [&](const std::vector<size_t>& sort, size_t room) {
    for (size_t i = 0; i < sort.size(); ++i)
      if (sort.size() <= room || i < room / 2 || i >= sort.size() - (room - room / 2))
        shown[sort[i]] = true;
  };
  const size_t first = std::min(told.size(), most);
  show(told, first);
  show(rest, most - first);
  std::vector<EventRow> out;
  int64_t left_out = 0;
  for (size_t i = 0; i < events.size(); ++i) {
    if (shown[i]) {
      out.push_back({i});
    } else if (++left_out; i + 1 == events.size() || shown[i + 1]) {
      out.push_back({i, report::human_count(left_out) + " more are in run.log"});
      left_out = 0;
    }
  }
  return out;
}

std::string RunRecord::state() const {
  for (size_t i = events.size(); i-- > 0;) switch (events[i].kind) {
      case Event::Kind::done:
        return "done";
      case Event::Kind::stop:
        return "stopped";
      case Event::Kind::fault:
        return "failed";
      case Event::Kind::start:
      case Event::Kind::resume:
      case Event::Kind::restart:
        return "unfinished";
      case Event::Kind::change:
      case Event::Kind::notice:
      case Event::Kind::warning:
      case Event::Kind::saved:
        break;
    }
  return "unfinished";
}

std::string RunRecord::setting(const std::string& key) const {
  for (const config::Setting& setting : settings)
    if (setting.key == key) return setting.value;
  return {};
}

RunRecord read_run(const fs::path& folder) {
  std::error_code failed;
  if (!fs::exists(folder, failed)) throw no_run(folder, "does not exist");
  if (!fs::is_directory(folder, failed)) throw no_run(folder, "is not a folder");
  RunRecord out;
  out.folder = folder;
  out.name = folder.string();
  while (out.name.size() > 1 && out.name.ends_with('/')) out.name.pop_back();
  const fs::path metrics = folder / "metrics.jsonl", log = folder / "run.log";
  if (!is_file(metrics) && !is_file(log))
    throw no_run(folder, "is not the folder of a run: it has neither metrics.jsonl nor run.log");
  if (is_there(metrics))
    out.metrics = read_metrics(metrics, out.problems);
  else
    out.problems.push_back(metrics.string() + " is not there: there are no curves");
  if (out.steps() == 0 && is_file(metrics))
    out.problems.push_back(metrics.string() + " has no rows yet");
  if (is_there(log)) {
    RunLog read = read_log(log, out.problems);
    out.events = std::move(read.events);
    out.started = std::move(read.first);
    out.ended = std::move(read.last);
    out.seconds = read.seconds;
  } else {
    out.problems.push_back(log.string() + " is not there: what happened is not known");
  }
  out.plan = read_json(folder / "plan.json", "mesh and plan are left out", out.problems);
  out.environment = read_json(folder / "env.json", "the machine is not known", out.problems);
  out.expert_load = read_json(folder / "expert_load.json", nullptr, out.problems);
  out.settings = read_settings(folder / config::kResolvedFile, out.problems);
  out.checkpoints = read_checkpoints(folder / "checkpoints", out.problems);
  out.times = read_traces(folder / "trace", out.problems);
  out.verdict = postmortem::judge_run(folder);
  out.problems.insert(out.problems.end(), out.verdict.problems.begin(), out.verdict.problems.end());
  return out;
}

const QuantityInfo& info_of(Quantity quantity) {
  static constexpr QuantityInfo kInfos[kQuantities] = {
      {.key = "loss", .title = "Loss", .unit = "", .may_be_log = true},
      {.key = "validation_loss", .title = "Validation loss", .unit = "", .may_be_log = true},
      {.key = "grad_norm", .title = "Gradient norm", .unit = "", .may_be_log = true},
      {.key = "lr", .title = "Learning rate", .unit = ""},
      {.key = "tokens_per_second", .title = "Tokens a second", .unit = ""},
      {.key = "step_ms", .title = "Time of a step", .unit = "ms", .may_be_log = true},
      {.key = "rank_work_ms",
       .title = "Work of ranks in a step",
       .unit = "ms",
       .may_be_log = true,
       .may_be_unknown = true},
      {.key = "mfu", .title = "MFU, share of the peak", .unit = "", .may_be_unknown = true},
      {.key = "exposed_comm_ms",
       .title = "Exposed communication of rank 0",
       .unit = "ms",
       .news = true,
       .may_be_unknown = true},
      {.key = "slowest_ms",
       .title = "Slowest rank beside the median",
       .unit = "ms",
       .news = true,
       .may_be_unknown = true},
      {.key = "memory_bytes", .title = "Memory of rank 0, peak", .unit = "", .bytes = true},
      {.key = "expert_imbalance", .title = "Fullest expert beside the mean", .unit = "times"},
      {.key = "dropped_tokens", .title = "Tokens that no expert took", .unit = "", .news = true},
  };
  return kInfos[static_cast<size_t>(quantity)];
}

namespace {

double number_or(const json::object& fields, const char* key, double otherwise) {
  const json::value* found = fields.if_contains(key);
  return found != nullptr && found->is_number() ? found->to_number<double>() : otherwise;
}

// In place of those of the row before, where this one has some.
void take_named(const json::object& fields, const char* key, std::vector<NamedFigure>& into) {
  const json::value* found = fields.if_contains(key);
  const json::object* named = found == nullptr ? nullptr : found->if_object();
  if (named == nullptr) return;
  into.clear();
  for (const auto& [name, value] : *named)
    if (const std::optional<double> number = monitor::number_of(value))
      into.push_back({std::string(name), *number});
}

// Each in place of its own of the rows before: a step may have had nothing of one.
void take_each(const json::object& fields, const char* key, std::vector<NamedFigure>& into) {
  std::vector<NamedFigure> now;
  take_named(fields, key, now);
  for (NamedFigure& one : now) {
    const auto known = std::ranges::find(into, one.name, &NamedFigure::name);
    if (known == into.end())
      into.push_back(std::move(one));
    else if (!std::isnan(one.value))
      known->value = one.value;
  }
}

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  // An error in words; empty: the row was taken.
  std::string take(std::string_view line) {
    unsigned char room[8192];
    json::monotonic_resource memory(room, sizeof room);
    boost::system::error_code failed;
    const json::value row = json::parse(line, failed, &memory);
    if (failed) return "is not valid JSON (" + failed.message() + ")";
    const json::object* fields = row.if_object();
    const json::value* number = fields == nullptr ? nullptr : fields->if_contains("step");
    if (number == nullptr || !number->is_int64() || number->as_int64() < 0)
      return "is not a row: it has no step";
    const double step = static_cast<double>(number->as_int64()) + 1;
    // A row is taken whole or not at all.
    std::array<std::optional<double>, kQuantities> values;
    for (size_t i = 0; i < kQuantities; ++i) {
      const Series& series = out_.series[i];
      const QuantityInfo& info = info_of(static_cast<Quantity>(i));
      const json::value* found = fields->if_contains(info.key);
      if (found == nullptr || (info.may_be_unknown && found->is_null())) continue;
      values[i] = monitor::number_of(*found);
      if (!values[i]) return std::string(info.key) + " is no number";
      if (!series.empty() && step <= series.steps.back())
        return "goes back to step " + std::to_string(number->as_int64()) + ", which was there";
      // A share above 1 is of a peak that was measured too low, as older versions wrote it.
      if (static_cast<Quantity>(i) == Quantity::mfu && *values[i] > 1) values[i].reset();
    }
    for (size_t i = 0; i < kQuantities; ++i)
      if (values[i]) out_.series[i].add(step, *values[i]);
    if (const auto& work = values[static_cast<size_t>(Quantity::rank_work_ms)]) {
      out_.least_work.add(step, number_or(*fields, "rank_work_ms_least", *work));
      out_.most_work.add(step, number_or(*fields, "rank_work_ms_most", *work));
    }
    if (const json::value* tokens = fields->if_contains("tokens");
        tokens != nullptr && tokens->is_number())
      out_.tokens += tokens->to_number<double>();
    take_named(*fields, "source_samples", out_.source_samples);
    take_named(*fields, "source_tokens", out_.source_tokens);
    take_each(*fields, "source_losses", out_.source_losses);
    take_named(*fields, "validation_losses", out_.validation_losses);
    return {};
  }

  // `taken`: gets the rows that were, as they stand there; nullptr: nobody wants them.
  Metrics read(std::string_view text, std::vector<std::string>& problems, std::string* taken) {
    int64_t line = 0, broken = 0, first_broken = 0;
    std::string why;
    while (!text.empty()) {
      ++line;
      const size_t end = text.find('\n');
      if (end == std::string_view::npos) {
        // The last line of a run that writes at this moment, or that died while it did.
        problems.push_back(file_ + " ends in the middle of line " + std::to_string(line) +
                           ", which is left out");
        break;
      }
      std::string said = take(text.substr(0, end));
      if (said.empty() && taken != nullptr) taken->append(text.substr(0, end + 1));
      text.remove_prefix(end + 1);
      if (said.empty()) continue;
      if (++broken == 1) why = std::move(said), first_broken = line;
    }
    if (broken > 0)
      problems.push_back(file_ + ": line " + std::to_string(first_broken) + " " + why +
                         (broken == 1
                              ? "; it is left out"
                              : "; " + report::human_count(broken) + " such lines are left out"));
    return std::move(out_);
  }

 private:
  std::string file_;
  Metrics out_;
};

}  // namespace

Metrics read_metrics(const std::filesystem::path& file, std::vector<std::string>& problems) {
  base::ForeignFile opened(file);
  const std::string text = opened.read(base::kLargeFile);
  if (!opened.problem().empty()) problems.push_back(file.string() + " " + opened.problem());
  return Reader(file.string()).read(text, problems, nullptr);
}

std::string metrics_taken(const std::filesystem::path& file) {
  std::vector<std::string> problems;
  std::string out;
  Reader(file.string()).read(base::ForeignFile(file).read(base::kLargeFile), problems, &out);
  return out;
}

// trace/rank_N.json: where the time of a rank went.

namespace {

enum What : uint8_t { kCompute, kMessage, kWait, kWhats };

struct Edge {
  int64_t at;
  What what;
  int by;  // +1: one more begins, -1: it ends
};

// The lanes of Trace::json().
struct Bar {
  int64_t lane = 0, begin = 0, length = 0;
  std::string name;
};

std::optional<Bar> bar_of(const std::string& line) {
  boost::system::error_code failed;
  const size_t begin = line.find('{'), end = line.rfind('}');
  if (begin == line.npos || end == line.npos || end < begin) return std::nullopt;
  const json::value parsed =
      json::parse(std::string_view(line).substr(begin, end + 1 - begin), failed);
  const json::object* event = failed ? nullptr : parsed.if_object();
  if (event == nullptr) return std::nullopt;
  const json::value *lane = event->if_contains("tid"), *ts = event->if_contains("ts"),
                    *length = event->if_contains("dur"), *name = event->if_contains("name");
  if (lane == nullptr || ts == nullptr || length == nullptr || name == nullptr ||
      !lane->is_int64() || !ts->is_int64() || !length->is_int64() || !name->is_string())
    return std::nullopt;
  return Bar{lane->as_int64(), ts->as_int64(), std::max<int64_t>(length->as_int64(), 0),
             std::string(name->as_string())};
}

// Which part a moment belongs to: a rank that waits does nothing else, whatever bars of computation
// are around it; messages under way beside computation cost nothing.
RankTimes times_of(int64_t rank, std::vector<Edge> edges, int64_t steps) {
  RankTimes out;
  out.rank = rank;
  out.steps = steps;
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.at < b.at; });
  int open[kWhats] = {};
  for (size_t i = 0; i < edges.size(); ++i) {
    if (i > 0) {
      const int64_t length = edges[i].at - edges[i - 1].at;
      if (open[kMessage] > 0) out.communicating += length;
      if (open[kWait] > 0)
        out.waiting += length;
      else if (open[kCompute] > 0)
        (open[kMessage] > 0 ? out.overlapped : out.computing) += length;
      else
        out.rest += length;
    }
    open[edges[i].what] += edges[i].by;
  }
  return out;
}

RankTimes read_trace(const std::string& text, int64_t rank) {
  constexpr int64_t kWaits = 3;
  std::vector<Edge> edges;
  int64_t steps = 0;
  for (size_t at = 0, end; at < text.size(); at = end + 1) {
    end = std::min(text.find('\n', at), text.size());
    const std::optional<Bar> bar = bar_of(text.substr(at, end - at));
    if (!bar) continue;
    const What what = bar->lane == 0                                              ? kCompute
                      : bar->lane == kWaits && bar->name.starts_with("wait for ") ? kWait
                                                                                  : kMessage;
    if (what == kCompute && bar->name == "optimizer") ++steps;
    edges.push_back({bar->begin, what, +1});
    edges.push_back({bar->begin + bar->length, what, -1});
  }
  return times_of(rank, std::move(edges), steps);
}

}  // namespace

std::vector<RankTimes> read_traces(const fs::path& folder, std::vector<std::string>& problems) {
  constexpr std::string_view kBegin = "rank_", kEnd = ".json";
  std::vector<RankTimes> out;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) continue;
    int64_t rank = -1;
    const char* last = name.data() + name.size() - kEnd.size();
    if (std::from_chars(name.data() + kBegin.size(), last, rank).ptr != last || rank < 0) continue;
    base::ForeignFile file(at->path());
    const std::string text = file.read(base::kLargeFile);
    if (!file.problem().empty()) {
      problems.push_back(at->path().string() + " " + file.problem());
      continue;
    }
    RankTimes times = read_trace(text, rank);
    if (times.total() > 0)
      out.push_back(times);
    else
      problems.push_back(at->path().string() + " has no bars of a trace");
  }
  std::sort(out.begin(), out.end(),
            [](const RankTimes& a, const RankTimes& b) { return a.rank < b.rank; });
  return out;
}

}  // namespace meshwright::runs
