// plugins check: the conformance kit on any library, each case in a child of its own.
#include <unistd.h>

#include <boost/json/array.hpp>
#include <cstring>
#include <filesystem>

#include "engine/cli/common.h"
#include "sdk/conformance/conformance.h"
#include "sdk/conformance/runner.h"

namespace meshwright::cli {
namespace {

namespace conf = conformance;
namespace fs = std::filesystem;

// How a child tells its parent: first line the verdict, then one problem, reason or note a line.
constexpr const char *kOk = "kit:ok", *kFailed = "kit:failed", *kSkipped = "kit:skipped";

struct Row {
  std::string strategy, name, summary;
  conf::Verdict verdict = conf::Verdict::failed;
  std::vector<std::string> lines;
};

const plugins::LoadedPlugin& load(plugins::Registry& registry, const std::string& what) {
  if (what.find('/') != std::string::npos || what.ends_with(".so")) return registry.load(fs::absolute(what), "command line");
  return *registry.find(what).plugin;
}

conf::Subject subject_of(const plugins::LoadedPlugin& plugin, const std::string& strategy) {
  conf::Subject subject{plugin.descriptor, nullptr, plugin.path};
  const char* at = reinterpret_cast<const char*>(plugin.descriptor->strategies);
  for (size_t i = 0; i < plugin.descriptor->strategy_count; ++i) {
    const auto* s = reinterpret_cast<const meshwright_strategy*>(at);
    if (strategy == s->name) subject.strategy = s;
    at += s->struct_size;
  }
  return subject;
}

// One case, in this process: what a child does.
int run_one(Call& call, const plugins::LoadedPlugin& plugin, const std::string& name) {
  const conf::Case* c = conf::find_case(name);
  if (c == nullptr) {
    Error error(ErrorCode::usage, "the kit has no case \"" + name + "\"");
    std::vector<std::string> names;
    for (const conf::Case& each : conf::cases()) names.emplace_back(each.name);
    if (std::string near = nearest_name(name, names); !near.empty()) error.help("did you mean --case " + near + "?");
    throw error.help("meshwright plugins check LIB runs all of them");
  }
  conf::Report report = conf::run_case(*c, subject_of(plugin, call.value("strategy")));
  switch (report.verdict()) {
    case conf::Verdict::ok:
      call.out.write(std::string(kOk) + "\n" + report.note() + "\n");
      break;
    case conf::Verdict::skipped:
      call.out.write(std::string(kSkipped) + "\n" + report.why_skipped() + "\n");
      break;
    case conf::Verdict::failed:
      call.out.write(std::string(kFailed) + "\n");
      for (const std::string& problem : report.problems()) call.out.write(problem + "\n");
      if (report.problem_count() > report.problems().size())
        call.out.write("and " + std::to_string(report.problem_count() - report.problems().size()) + " more\n");
      break;
  }
  return 0;
}

Row spawn(const plugins::LoadedPlugin& plugin, const conf::Case& c, const std::string& strategy, double seconds) {
  Row row{strategy, std::string(c.name), std::string(c.summary), conf::Verdict::failed, {}};
  std::vector<std::string> command = {
      fs::read_symlink("/proc/self/exe").string(), "plugins", "check", plugin.path.string(), "--child", "--case", row.name};
  if (!strategy.empty()) command.insert(command.end(), {"--strategy", strategy});
  conf::ChildResult result = conf::run_child(command, seconds);
  std::vector<std::string> lines;
  for (size_t at = 0; at < result.output.size();) {
    size_t end = std::min(result.output.find('\n', at), result.output.size());
    if (end > at) lines.push_back(result.output.substr(at, end - at));
    at = end + 1;
  }
  // What the plugin itself printed may stand before the verdict.
  size_t verdict = lines.size();
  for (size_t i = 0; i < lines.size(); ++i)
    if (lines[i] == kOk || lines[i] == kFailed || lines[i] == kSkipped) verdict = i;
  if (result.timed_out) {
    row.lines = {"did not end within " + std::to_string(static_cast<int>(seconds)) + " s and was killed"};
  } else if (result.signal != 0) {
    row.lines = {std::string("ended by signal ") + std::to_string(result.signal) + " (" + ::strsignal(result.signal) + ")"};
  } else if (verdict == lines.size() || result.exit_status != 0) {
    row.lines = {"ended with status " + std::to_string(result.exit_status) + " and no verdict"};
    if (!lines.empty()) row.lines.push_back(lines.front());
  } else {
    row.verdict = lines[verdict] == kOk ? conf::Verdict::ok : lines[verdict] == kSkipped ? conf::Verdict::skipped : conf::Verdict::failed;
    row.lines.assign(lines.begin() + static_cast<ptrdiff_t>(verdict) + 1, lines.end());
  }
  return row;
}

const char* word(conf::Verdict verdict) {
  switch (verdict) {
    case conf::Verdict::ok:
      return "ok";
    case conf::Verdict::failed:
      return "FAIL";
    case conf::Verdict::skipped:
      return "skipped";
  }
  return "";
}

void print(Call& call, const Row& row) {
  report::Tone tone = row.verdict == conf::Verdict::ok       ? report::Tone::green
                      : row.verdict == conf::Verdict::failed ? report::Tone::red
                                                             : report::Tone::yellow;
  std::string name = row.strategy.empty() ? row.name : row.strategy + ": " + row.name;
  std::string line = report::pad(report::paint(call.out_style, tone, word(row.verdict)), 9) + report::pad(name, 32);
  if (row.verdict == conf::Verdict::failed) {
    call.out.write(line + row.summary + "\n");
    for (const std::string& problem : row.lines) call.out.write("         - " + report::printable(problem) + "\n");
  } else {
    call.out.write(line + (row.lines.empty() ? row.summary : row.lines.front()) + "\n");
  }
  call.out.flush();
}

int run_check(Call& call) {
  plugins::Registry registry({});
  const plugins::LoadedPlugin& plugin = load(registry, call.positional(0));
  if (call.has("child")) return run_one(call, plugin, call.value("case"));

  double seconds = static_cast<double>(call.number("timeout", 1).value_or(60));
  std::vector<Row> rows;
  std::string only = call.value("case");
  if (!only.empty() && conf::find_case(only) == nullptr) return run_one(call, plugin, only);
  auto run = [&](const conf::Case& c, const std::string& strategy) {
    if (!only.empty() && only != c.name) return;
    rows.push_back(spawn(plugin, c, strategy, seconds));
    if (!call.json) print(call, rows.back());
  };
  if (!call.json) call.out.write(plugin.name + " " + plugin.version + " (" + plugin.path.string() + ")\n");
  for (const conf::Case& c : conf::cases())
    if (c.scope == conf::Scope::library) run(c, "");
  for (const plugins::StrategyInfo& info : plugin.strategies)
    for (const conf::Case& c : conf::cases())
      if (c.scope == conf::Scope::strategy) run(c, info.name);
  int64_t failed = 0, passed = 0, skipped = 0;
  boost::json::array json_rows;
  for (const Row& row : rows) {
    (row.verdict == conf::Verdict::failed ? failed : row.verdict == conf::Verdict::ok ? passed : skipped) += 1;
    boost::json::array lines;
    for (const std::string& line : row.lines) lines.emplace_back(line);
    json_rows.push_back(
        boost::json::object{{"case", row.name},
                            {"strategy", row.strategy.empty() ? boost::json::value(nullptr) : boost::json::value(row.strategy)},
                            {"verdict", word(row.verdict)},
                            {"details", lines}});
  }
  if (call.json)
    call.print_json(boost::json::object{{"plugin", plugin.name},
                                        {"path", plugin.path.string()},
                                        {"passed", passed},
                                        {"failed", failed},
                                        {"skipped", skipped},
                                        {"cases", json_rows}});
  else
    call.out.write(std::to_string(passed) + " passed, " + std::to_string(failed) + " failed, " + std::to_string(skipped) + " skipped\n");
  return failed == 0 ? 0 : exit_status(ErrorCode::plugin_nonconforming);
}

}  // namespace

Verb plugins_check_verb() {
  return {.name = "plugins check",
          .summary = "Run the conformance kit on a plugin",
          .details =
              "Every case runs in a process of its own, so that a crash or a hang is a result. Exit status 2 when a case fails.\n\n"
              "  meshwright plugins check ./libmeshwright_mine.so",
          .positionals = {{"LIB|NAME"}},
          .flags = {{.name = "case", .argument = "NAME", .doc = "Run this case only."},
                    {.name = "timeout", .argument = "SECONDS", .doc = "Limit of each case. Default: 60."},
                    {.name = "strategy", .argument = "NAME", .doc = "With --child: the strategy to look at."},
                    {.name = "child", .doc = "Run one case in this process; what the kit itself does."},
                    kJsonFlag},
          .run = run_check};
}

}  // namespace meshwright::cli
