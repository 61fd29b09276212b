// plugins check: the conformance kit on any library. This process only starts children and prints:
// even loading the library happens in a child, so that nothing a plugin does can end the run.
#include <algorithm>
#include <boost/json/array.hpp>
#include <charconv>
#include <filesystem>

#include "engine/cli/common.h"
#include "engine/loader/descriptor.h"
#include "sdk/conformance/conformance.h"
#include "sdk/conformance/runner.h"

namespace meshwright::cli {
namespace {

namespace conf = conformance;
namespace fs = std::filesystem;
using conf::Fields;
using conf::Verdict;

struct Row {
  std::string strategy;
  const conf::Case* about = nullptr;
  conf::Outcome outcome;
};

Error unknown_name(const std::string& what, const std::string& given,
                   const std::vector<std::string>& names, const std::string& flag) {
  Error error(ErrorCode::usage, what + " \"" + given + "\"");
  if (std::string near = nearest_name(given, names); !near.empty())
    error.help("did you mean --" + flag + " " + near + "?");
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return error.help("there is " + all);
}

const conf::Case& case_of(const std::string& name) {
  if (const conf::Case* c = conf::find_case(name)) return *c;
  std::vector<std::string> names;
  for (const conf::Case& each : conf::cases()) names.emplace_back(each.name);
  throw unknown_name("the kit has no case", name, names, "case");
}

// An error over the pipe and back: the parent shows the loader's refusal as if it had judged the
// library itself.
Fields fields_of(const Error& error) {
  Fields fields = {{"verdict", "failed"},
                   {"refused", std::to_string(static_cast<int>(error.code()))},
                   {"message", error.message()}};
  if (!error.key().empty()) fields.emplace_back("key", error.key());
  for (const std::string& note : error.notes()) fields.emplace_back("about", note);
  for (const std::string& help : error.helps()) fields.emplace_back("help", help);
  return fields;
}

std::optional<Error> refusal_in(const Fields& fields) {
  std::vector<std::string> codes = conf::values_of(fields, "refused"),
                           messages = conf::values_of(fields, "message");
  uint16_t code = 0;
  if (codes.empty() || messages.empty() ||
      std::from_chars(codes[0].data(), codes[0].data() + codes[0].size(), code).ec != std::errc())
    return std::nullopt;
  Error error(static_cast<ErrorCode>(code), messages[0]);
  for (const std::string& key : conf::values_of(fields, "key")) error.key(key);
  for (const std::string& note : conf::values_of(fields, "about")) error.note(note);
  for (const std::string& help : conf::values_of(fields, "help")) error.help(help);
  return error;
}

const loader::LoadedPlugin& load(loader::Registry& registry, const std::string& what) {
  if (what.find('/') != std::string::npos || what.ends_with(".so"))
    return registry.load(fs::absolute(what), "command line");
  return *registry.find(what).plugin;
}

// One case, in this process: what a child does.
int run_child(Call& call) {
  conf::prepare_child();
  const conf::Case& c = case_of(call.value("case"));
  loader::Registry registry({});
  Fields fields;
  try {
    const loader::LoadedPlugin& plugin = load(registry, call.positional(0));
    conf::Subject subject{plugin.descriptor, nullptr, plugin.path};
    for (size_t i = 0; i < plugin.strategies.size(); ++i)
      if (plugin.strategies[i].name == call.value("strategy"))
        subject.strategy = loader::raw_strategy(*plugin.descriptor, i);
    if (c.scope == conf::Scope::strategy && subject.strategy == nullptr)
      throw Error(ErrorCode::usage,
                  "case " + std::string(c.name) + " needs a --strategy of the library");
    fields = conf::fields_of(conf::run_case(c, subject));
    fields.emplace_back("plugin", plugin.name);
    fields.emplace_back("version", plugin.version);
    fields.emplace_back("path", plugin.path.string());
    for (const loader::StrategyInfo& info : plugin.strategies)
      fields.emplace_back("strategy", info.name);
  } catch (const Error& error) {
    fields = fields_of(error);
  }
  if (!conf::answer(fields))
    throw Error(ErrorCode::usage, "--child is for the program itself").help("leave out --child");
  return 0;
}

const char* word(Verdict verdict) {
  switch (verdict) {
    case Verdict::ok:
      return "ok";
    case Verdict::failed:
      return "FAIL";
    case Verdict::skipped:
      return "skipped";
  }
  return "";
}

report::Tone tone_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::ok:
      return report::Tone::green;
    case Verdict::failed:
      return report::Tone::red;
    case Verdict::skipped:
      return report::Tone::yellow;
  }
  return report::Tone::plain;
}

void print(Call& call, const Row& row) {
  const conf::Outcome& o = row.outcome;
  std::string name = row.strategy.empty() ? std::string(row.about->name)
                                          : row.strategy + ": " + std::string(row.about->name);
  std::string line =
      report::pad(report::paint(call.out_style, tone_of(o.verdict), word(o.verdict)), 9) +
      report::pad(name, 32);
  bool failed = o.verdict == Verdict::failed;
  call.out.write(
      line +
      report::printable(failed || o.lines.empty() ? std::string(row.about->summary) : o.lines[0]) +
      "\n");
  if (failed)
    for (const std::string& problem : o.lines)
      call.out.write("         - " + report::printable(problem) + "\n");
  call.out.flush();
}

boost::json::object json_of(const Row& row) {
  boost::json::array lines;
  for (const std::string& line : row.outcome.lines) lines.emplace_back(report::printable(line));
  return {{"case", row.about->name},
          {"strategy",
           row.strategy.empty() ? boost::json::value(nullptr) : boost::json::value(row.strategy)},
          {"verdict", word(row.outcome.verdict)},
          {"details", lines},
          {"seconds", row.outcome.child.seconds}};
}

int run_check(Call& call) {
  if (call.has("child")) return run_child(call);
  const std::string library = call.positional(0), only = call.value("case"),
                    only_strategy = call.value("strategy");
  if (!only.empty()) case_of(only);
  auto seconds = static_cast<double>(call.number("timeout", 1).value_or(60));
  const std::string program = fs::read_symlink("/proc/self/exe").string();
  std::vector<Row> rows;
  auto run = [&](const conf::Case& c, const std::string& strategy, const std::string& path) {
    std::vector<std::string> command = {program,  "plugins",          "check", path, "--child",
                                        "--case", std::string(c.name)};
    if (!strategy.empty()) command.insert(command.end(), {"--strategy", strategy});
    rows.push_back({strategy, &c, conf::run_case_in_child(command, seconds)});
  };

  // The first case loads the library, so it always runs; the rest is known from its answer.
  const conf::Case& first = conf::cases().front();
  run(first, "", library);
  const Fields known = rows[0].outcome.child.fields;
  if (std::optional<Error> refused = refusal_in(known)) throw *refused;
  auto text = [&](const char* name) {
    std::vector<std::string> values = conf::values_of(known, name);
    return values.empty() ? std::string() : values[0];
  };
  const std::string path = text("path").empty() ? library : text("path");
  std::vector<std::string> strategies = conf::values_of(known, "strategy");
  if (!only_strategy.empty()) {
    if (std::find(strategies.begin(), strategies.end(), only_strategy) == strategies.end())
      throw unknown_name(path + " has no strategy", only_strategy, strategies, "strategy");
    strategies = {only_strategy};
  }
  const std::string title =
      text("plugin").empty() ? path : text("plugin") + " " + text("version") + " (" + path + ")";
  if (!call.json) call.out.write(report::printable(title) + "\n");
  auto wanted = [&](const conf::Case& c) { return only.empty() || only == c.name; };
  if (!wanted(first) && rows[0].outcome.verdict != Verdict::failed)
    rows.clear();
  else if (!call.json)
    print(call, rows[0]);
  auto run_and_print = [&](const conf::Case& c, const std::string& strategy) {
    if (!wanted(c)) return;
    run(c, strategy, path);
    if (!call.json) print(call, rows.back());
  };
  for (const conf::Case& c : conf::cases().subspan(1))
    if (c.scope == conf::Scope::library && !text("path").empty()) run_and_print(c, "");
  for (const std::string& strategy : strategies)
    for (const conf::Case& c : conf::cases())
      if (c.scope == conf::Scope::strategy) run_and_print(c, strategy);

  auto count = [&](Verdict verdict) {
    return std::count_if(rows.begin(), rows.end(),
                         [&](const Row& row) { return row.outcome.verdict == verdict; });
  };
  const int64_t passed = count(Verdict::ok), failed = count(Verdict::failed),
                skipped = count(Verdict::skipped);
  std::optional<Error> error;
  if (failed > 0) {
    const Row& row = *std::find_if(rows.begin(), rows.end(), [](const Row& r) {
      return r.outcome.verdict == Verdict::failed;
    });
    error.emplace(ErrorCode::plugin_nonconforming, std::to_string(failed) + " of " +
                                                       std::to_string(rows.size()) +
                                                       " cases failed for " + path);
    error->help("meshwright plugins check " + path + " --case " + std::string(row.about->name) +
                " runs one of them alone");
  }
  if (!call.json) {
    call.out.write(std::to_string(passed) + " passed, " + std::to_string(failed) + " failed, " +
                   std::to_string(skipped) + " skipped\n");
    call.out.flush();
    return error ? call.fail({&*error, 1}) : 0;
  }
  boost::json::array json_rows;
  for (const Row& row : rows) json_rows.push_back(json_of(row));
  boost::json::object out{
      {"plugin", text("plugin")}, {"version", text("version")}, {"path", path},
      {"passed", passed},         {"failed", failed},           {"skipped", skipped},
      {"cases", json_rows}};
  if (error)
    for (const auto& member : report::errors_json({&*error, 1})) out[member.key()] = member.value();
  call.print_json(out);
  return error ? exit_status(error->code()) : 0;
}

}  // namespace

Verb plugins_check_verb() {
  Verb verb = declare(run_check, R"(
plugins check LIB
Run the conformance kit on a plugin

LIB is a file, or the name of a strategy that is found where plugins are looked for. Every case
runs in a process of its own, so that a crash or a hang is a result. Exit status 2 when a case
fails, or when the library is refused.

  meshwright plugins check ./libmeshwright_mine.so
  meshwright plugins check fsdp2 --case mesh

--case NAME        Run this case only.
--strategy NAME    Look at this strategy of the library only.
--timeout SECONDS  Limit of each case. Default: 60.
--json
)");
  verb.details += "\n\nCases:\n";
  for (const conf::Case& c : conf::cases())
    verb.details += "  " + report::pad(c.name, 14) + std::string(c.summary) + "\n";
  // Run one case in this process and answer on a pipe.
  verb.flags.push_back({.name = "child", .hidden = true});
  return verb;
}

}  // namespace meshwright::cli
