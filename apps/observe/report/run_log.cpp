// run.log as events. A line begins with its time; those that an error adds below its first have
// none. Logs of versions before times were written are read too, by how their lines begin.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <string_view>

#include "apps/observe/report/run_record.h"
#include "sdk/base/files/foreign_file.h"

namespace meshwright::runs {

const char* kind_name(Event::Kind kind) {
  static constexpr const char* kNames[] = {"start", "resume",  "change", "notice", "warning",
                                           "fault", "restart", "stop",   "saved",  "done"};
  return kNames[static_cast<size_t>(kind)];
}

namespace {

using Kind = Event::Kind;

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// "fsdp2 on 2 ranks: LlamaForCausalLM, ..."
bool is_start(std::string_view line) {
  const size_t on = line.find(" on "), rank = line.find(" rank", on == line.npos ? 0 : on);
  return on != line.npos && rank != line.npos && contains(line.substr(0, on + 1), " ") &&
         line.find(' ') == on && on + 4 < line.size() &&
         std::isdigit(static_cast<unsigned char>(line[on + 4])) != 0 &&
         contains(line, " parameters; batch ");
}

// What the launcher says below the words of the rank that failed.
bool ends_all(std::string_view line) {
  return contains(line, " failed first; ") ||
         (contains(line, " stopped by a signal (") && line.ends_with("; all are ended"));
}

// nullopt: nothing to tell of.
std::optional<Kind> kind_of(std::string_view line) {
  if (line.starts_with("error[")) return Kind::fault;
  if (line.starts_with("warning: ")) return Kind::warning;
  if (line.starts_with("notice: ") || line.starts_with("verdict: ")) return Kind::notice;
  if (line.starts_with("continues after step ")) return Kind::resume;
  if (line.starts_with("continues with ")) return Kind::change;
  if (line.starts_with("restart ")) return Kind::restart;
  if (line.starts_with("no restart is left")) return Kind::notice;
  if (line.starts_with("done: ")) return Kind::done;
  if (line.starts_with("stopped by ") || contains(line, ": saved step ")) return Kind::stop;
  if (contains(line, "ended without a word") || contains(line, " failed with exit status ") ||
      contains(line, " was ended by signal ") || ends_all(line))
    return Kind::fault;
  if (line.starts_with("an earlier run of this name ") ||
      line.starts_with("checkpoints that this run does not continue "))
    return Kind::notice;
  if (is_start(line)) return Kind::start;
  return std::nullopt;
}

// Takes "2026-11-24T09:30:00Z " from the front.
std::string take_time(std::string_view& line) {
  constexpr std::string_view kForm = "0000-00-00T00:00:00Z ";
  if (line.size() < kForm.size()) return {};
  for (size_t i = 0; i < kForm.size(); ++i)
    if (kForm[i] == '0' ? std::isdigit(static_cast<unsigned char>(line[i])) == 0
                        : line[i] != kForm[i])
      return {};
  std::string time(line.substr(0, kForm.size() - 1));
  line.remove_prefix(kForm.size());
  return time;
}

std::optional<double> seconds_between(const std::string& first, const std::string& last) {
  auto moment = [](const std::string& text) -> std::optional<std::time_t> {
    std::tm parts{};
    if (std::sscanf(text.c_str(), "%4d-%2d-%2dT%2d:%2d:%2dZ", &parts.tm_year, &parts.tm_mon,
                    &parts.tm_mday, &parts.tm_hour, &parts.tm_min, &parts.tm_sec) != 6)
      return std::nullopt;
    parts.tm_year -= 1900;
    parts.tm_mon -= 1;
    return ::timegm(&parts);
  };
  const std::optional<std::time_t> from = moment(first), to = moment(last);
  if (!from || !to) return std::nullopt;
  return std::difftime(*to, *from);
}

// Lines that a start may begin with: the time before them is no time that a run took.
bool may_begin(std::optional<Kind> kind) {
  return kind == Kind::start || kind == Kind::resume || kind == Kind::change ||
         kind == Kind::notice || kind == Kind::warning || kind == Kind::restart;
}

// Takes "[rank 3] " from the front, the words of a rank other than the first, or "ranks 1 and 3: "
// of what some were told at the start.
std::string_view take_rank(std::string_view line) {
  constexpr std::string_view kBegin = "[rank ";
  if (line.starts_with("rank ") || line.starts_with("ranks ")) {
    const std::string_view words = line.substr(std::min(line.find(": "), line.size() - 2) + 2);
    return words.starts_with("warning: ") || words.starts_with("notice: ") ? words : line;
  }
  if (!line.starts_with(kBegin)) return line;
  const size_t end = line.find("] ");
  const std::string_view number = line.substr(kBegin.size(), end - kBegin.size());
  if (end == line.npos || number.empty() || number.find_first_not_of("0123456789") != number.npos)
    return line;
  return line.substr(end + 2);
}

std::optional<int64_t> take_number(std::string_view& text) {
  int64_t value = 0;
  auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

class LogReader {
 public:
  RunLog read(std::string_view text) {
    while (!text.empty()) {
      const size_t end = text.find('\n');
      if (end == text.npos) break;  // not written to its end
      take(text.substr(0, end));
      text.remove_prefix(end + 1);
    }
    return std::move(out_);
  }

 private:
  void add(Kind kind, std::string time, std::string_view line) {
    out_.events.push_back({kind, std::move(time), step_, std::string(line)});
    open_ = true;
  }

  void take(std::string_view line) {
    std::string time = take_time(line);
    const std::string_view whole = line;
    line = take_rank(line);
    if (!time.empty()) {
      if (out_.first.empty()) out_.first = time;
      if (const auto seconds = seconds_between(out_.last.empty() ? time : out_.last, time))
        out_.seconds =
            out_.seconds.value_or(0) + (may_begin(kind_of(line)) ? 0 : std::max(*seconds, 0.0));
      out_.last = time;
    }
    stamped_ = stamped_ || !time.empty();
    if (line.starts_with("step ") && take_step(line, time)) {
      open_ = false;
      return;
    }
    const std::optional<Kind> kind = kind_of(line);
    const bool below = open_ && time.empty() && !out_.events.empty();
    const bool same_fault = below && ends_all(line) && out_.events.back().kind == Kind::fault;
    if (same_fault || (below && (line.starts_with(' ') || (stamped_ && !kind)))) {
      out_.events.back().text += "\n" + std::string(line);
    } else if (kind) {
      if (*kind == Kind::resume) {
        std::string_view rest = line.substr(21);  // behind "continues after step "
        step_ = take_number(rest).value_or(step_);
      }
      // A run that starts anew under this name; the one before has its metrics elsewhere, too.
      if (line.starts_with("an earlier run of this name ")) {
        out_.events.clear();
        out_.first = time;
        out_.seconds = 0;
        step_ = 0;
      }
      // An earlier run's steps are no steps of the one that starts here.
      if (*kind == Kind::start && (out_.events.empty() || out_.events.back().kind != Kind::resume))
        step_ = 0;
      add(*kind, std::move(time), whole);
    } else {
      open_ = false;
    }
  }

  // "step 3/10  loss 4.5 ...", "step 3/10  checkpoint runs/a/...", "step 3  validation loss 4.2"
  bool take_step(std::string_view line, std::string& time) {
    std::string_view rest = line.substr(5);
    const std::optional<int64_t> step = take_number(rest);
    if (!step) return false;
    step_ = *step;
    if (contains(rest, "  checkpoint "))
      add(Kind::saved, std::move(time), rest.substr(rest.find("  checkpoint ") + 2));
    else if (contains(rest, "  no checkpoint: "))
      add(Kind::warning, std::move(time), rest.substr(rest.find("  no checkpoint: ") + 2));
    return true;
  }

  RunLog out_;
  int64_t step_ = 0;
  bool open_ = false;     // the last event may have more lines
  bool stamped_ = false;  // lines have times
};

}  // namespace

RunLog parse_log(const std::string& text) { return LogReader().read(text); }

RunLog read_log(const std::filesystem::path& file, std::vector<std::string>& problems) {
  base::ForeignFile opened(file);
  const std::string text = opened.read(base::kLargeFile);
  if (!opened.problem().empty()) problems.push_back(file.string() + " " + opened.problem());
  return parse_log(text);
}

}  // namespace meshwright::runs
