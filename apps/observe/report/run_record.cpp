#include "apps/observe/report/run_record.h"

#include <algorithm>
#include <boost/json/parse.hpp>

#include "engine/config/config.h"
#include "engine/config/syntax.h"
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

std::vector<bool> shown_events(const std::vector<const Event*>& events, size_t most) {
  std::vector<size_t> told, rest;
  for (size_t i = 0; i < events.size(); ++i)
    (events[i]->kind == Event::Kind::warning || events[i]->kind == Event::Kind::notice ? rest
                                                                                       : told)
        .push_back(i);
  std::vector<bool> out(events.size(), false);
  auto show = [&](const std::vector<size_t>& sort, size_t room) {
    for (size_t i = 0; i < sort.size(); ++i)
      if (sort.size() <= room || i < room / 2 || i >= sort.size() - (room - room / 2))
        out[sort[i]] = true;
  };
  const size_t first = std::min(told.size(), most);
  show(told, first);
  show(rest, most - first);
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

}  // namespace meshwright::runs
