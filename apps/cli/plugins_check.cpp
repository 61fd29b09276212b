// plugins check: the conformance kit on any library. This process only starts children and prints:
// even loading the library happens in a child, so that nothing a plugin does can end the run.
#include <algorithm>
#include <boost/json/array.hpp>
#include <csignal>
#include <filesystem>
#include <iterator>

#include "apps/cli/common.h"
#include "engine/config/source.h"
#include "engine/data/dataset.h"
#include "engine/job/job.h"
#include "engine/launch/spawn.h"
#include "engine/plugins/registry.h"
#include "sdk/base/conformance.h"
#include "sdk/base/files/json_codec.h"
#include "sdk/base/host_facts.h"
#include "sdk/base/words.h"

namespace meshwright::cli {
namespace {

namespace conf = conformance;
namespace fs = std::filesystem;
using conf::Fields;
using conf::Verdict;

struct Row {
  std::string of;  // the strategy, data set or model family
  const conf::Case* about = nullptr;
  conf::Outcome outcome;
};

Error unknown_name(const std::string& what, const std::string& given,
                   const std::vector<std::string>& names, const std::string& flag) {
  Error error(ErrorCode::usage, what + " \"" + given + "\"");
  if (std::string near = nearest_name(given, names); !near.empty())
    error.help("did you mean --" + flag + " " + near + "?");
  if (names.empty()) return error.help("leave out --" + flag);
  return error.help("there is " + text::join(names, ", "));
}

const conf::Case& case_of(const std::string& name) {
  if (const conf::Case* c = conf::find_case(name)) return *c;
  std::vector<std::string> names;
  for (const conf::Case& each : conf::cases()) names.emplace_back(each.name);
  throw unknown_name("the kit has no case", name, names, "case");
}

// The job of --file, with the library at its disposal.
plan::Job job_of_file(const Call& call, const fs::path& library) {
  config::LoadOptions options;
  options.file = call.value("file");
  options.sets = call.values("set");
  options.sets.push_back("plugins.load=[\"" + library.string() + "\"]");
  Diagnostics diagnostics;
  std::optional<plan::Job> job = plan::load_job(options, diagnostics);
  diagnostics.throw_if_any();
  return std::move(*job);
}

// What a job asks this kind of data set for; nullopt: it reads other data.
std::optional<DatasetRequest> data_request(const plan::Job& job, const std::string& dataset) {
  if (!job.dataset || job.dataset->info->name != dataset) return std::nullopt;
  int64_t vocabulary = 0;
  if (const std::optional<plan::JobModel> model = plan::model_of(job))
    vocabulary = model->outline(job.config).vocab_size;
  const auto seed = static_cast<uint64_t>(job.config.table("run").get_int("seed"));
  return data::request_of(data::dataset_config(job, "dataset", vocabulary, seed));
}

// What a job asks this model family for, as a job of one rank; nullopt: it trains another one.
std::optional<ModelRequest> model_request(const plan::Job& job, const std::string& model) {
  if (!job.model || job.model->info->name != model) return std::nullopt;
  ModelRequest out = plan::model_of(job)->request;
  out.sizes = {};
  out.storage = DType::float32;
  return out;
}

// The overrides that are of this table, "distributed.fsdp2", checked.
std::vector<std::pair<std::string, OptionValue>> settings_of(const std::vector<std::string>& sets,
                                                             const OptionSchema& own) {
  std::vector<std::pair<std::string, OptionValue>> out;
  Options taken(own);
  for (const std::string& set : sets) {
    if (!set.starts_with(own.table + ".")) continue;
    config::Value root;
    Diagnostics diagnostics;
    config::apply_set(root, set, diagnostics);
    diagnostics.throw_if_any();
    const config::Value* table = &root;
    for (const std::string& part : text::split(own.table, '.')) table = &table->find(part)->value;
    const config::Entry& entry = table->entries.front();
    std::optional<OptionValue> value = config::to_option_value(entry.value);
    if (!value)
      throw Error(ErrorCode::wrong_type, "--set " + set + " is no value of an option")
          .key(own.table + "." + entry.key);
    taken.set(entry.key, *value);
    out.emplace_back(entry.key, std::move(*value));
  }
  return out;
}

// An override that nothing here looks at is told, not dropped: what --file names has any, the
// strategies their own tables. The kit chooses layouts itself.
void check_sets(const Call& call, const loader::LoadedPlugin& plugin) {
  const std::vector<std::string> sets = call.values("set");
  for (const loader::StrategyInfo& info : plugin.strategies) settings_of(sets, info.schema);
  if (call.has("file")) return;
  for (const std::string& set : sets) {
    if (std::ranges::any_of(plugin.strategies, [&](const loader::StrategyInfo& info) {
          return set.starts_with(info.schema.table + ".");
        }))
      continue;
    Error error(ErrorCode::usage, "--set " + set + " changes nothing that is checked here");
    for (const loader::StrategyInfo& info : plugin.strategies)
      error.help("keys of [" + info.schema.table + "] are those of the strategy " + info.name);
    throw error.help("--file JOB names a job, whose [dataset] and [model] --set changes, too");
  }
}

// The component of that name among those of its sort, as the descriptor has it.
const meshwright_component* component_of(const std::vector<loader::ComponentInfo>& infos,
                                         const std::string& name) {
  for (const loader::ComponentInfo& info : infos)
    if (info.name == name) return info.component;
  return nullptr;
}

// The option by which a case is told what it is about; "": the library.
std::string flag_of(conf::Scope scope) {
  return scope == conf::Scope::strategy  ? "strategy"
         : scope == conf::Scope::dataset ? "dataset"
         : scope == conf::Scope::model   ? "model"
                                         : "";
}

// One case, in this process: what a child does.
int run_child(Call& call) {
  conf::prepare_child();
  // The parent tells of crashes, by their signals.
  for (int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) std::signal(number, SIG_DFL);
  const conf::Case& c = case_of(call.value("case"));
  loader::Registry registry({});
  Fields fields;
  try {
    const loader::LoadedPlugin& plugin = plugin_of(registry, call.positional(0));
    check_sets(call, plugin);
    conf::Subject subject;
    subject.plugin = plugin.descriptor;
    subject.path = plugin.path;
    subject.dataset = component_of(plugin.datasets, call.value("dataset"));
    subject.model = component_of(plugin.models, call.value("model"));
    subject.code = plugin.code;
    for (const loader::StrategyInfo& info : plugin.strategies)
      if (info.name == call.value("strategy")) {
        subject.strategy = info.strategy;
        subject.settings = settings_of(call.values("set"), info.schema);
      }
    if ((c.scope == conf::Scope::dataset && subject.dataset == nullptr) ||
        (c.scope == conf::Scope::model && subject.model == nullptr) ||
        (c.scope == conf::Scope::strategy && subject.strategy == nullptr))
      throw Error(ErrorCode::usage, "case " + std::string(c.name) + " needs a --" +
                                        flag_of(c.scope) + " of the library");
    std::optional<DatasetRequest> data;
    std::optional<ModelRequest> model;
    if (call.has("file") && (subject.dataset != nullptr || subject.model != nullptr)) {
      const plan::Job job = job_of_file(call, plugin.path);
      if (subject.dataset != nullptr) data = data_request(job, call.value("dataset"));
      if (subject.model != nullptr) model = model_request(job, call.value("model"));
    }
    if (data) subject.request = &*data;
    if (model) subject.model_request = &*model;
    fields = conf::fields_of(conf::run_case(c, subject));
    fields.emplace_back("plugin", plugin.name);
    fields.emplace_back("version", plugin.version);
    fields.emplace_back("path", plugin.path.string());
    for (const loader::StrategyInfo& info : plugin.strategies)
      fields.emplace_back("strategy", info.name);
    for (const loader::ComponentInfo& info : plugin.datasets)
      fields.emplace_back("dataset", info.name);
    for (const loader::ComponentInfo& info : plugin.models) fields.emplace_back("model", info.name);
  } catch (const Error& error) {
    fields = {{"verdict", "failed"}, {"refused", base::error_text(error)}};
  }
  if (!conf::answer(fields))
    throw Error(ErrorCode::usage, "--child is for the program itself").help("leave out --child");
  return 0;
}

struct Look {
  const char* word;
  report::Tone tone;
};

const Look& look_of(Verdict verdict) {
  // In the order of Verdict.
  static constexpr Look kLooks[] = {
      {"ok", report::Tone::green}, {"FAIL", report::Tone::red}, {"skipped", report::Tone::yellow}};
  static_assert(std::size(kLooks) == static_cast<size_t>(Verdict::skipped) + 1);
  return kLooks[static_cast<size_t>(verdict)];
}

void print(Call& call, const Row& row) {
  const conf::Outcome& o = row.outcome;
  std::string name =
      row.of.empty() ? std::string(row.about->name) : row.of + ": " + std::string(row.about->name);
  const Look& look = look_of(o.verdict);
  std::string line =
      report::pad(report::paint(call.out_style, look.tone, look.word), 9) + report::pad(name, 32);
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
          {"strategy", row.of.empty() ? boost::json::value(nullptr) : boost::json::value(row.of)},
          {"verdict", look_of(row.outcome.verdict).word},
          {"details", lines},
          {"seconds", row.outcome.child.seconds}};
}

// What the first case, which loads the library, told of it.
struct Library {
  bool loaded = false;
  std::string path, plugin, version;
  std::vector<std::string> strategies = {}, datasets = {}, models = {};  // to be looked at
};

Library library_of(const Fields& told, const std::string& given, const std::string& only_strategy) {
  auto text = [&](const char* name) {
    std::vector<std::string> values = conf::values_of(told, name);
    return values.empty() ? std::string() : values[0];
  };
  Library out{.path = text("path"), .plugin = text("plugin"), .version = text("version")};
  out.loaded = !out.path.empty();
  if (!out.loaded) out.path = given;
  out.strategies = conf::values_of(told, "strategy");
  out.datasets = conf::values_of(told, "dataset");
  out.models = conf::values_of(told, "model");
  if (only_strategy.empty()) return out;
  out.datasets.clear();
  out.models.clear();
  if (std::find(out.strategies.begin(), out.strategies.end(), only_strategy) ==
      out.strategies.end())
    throw unknown_name(out.path + " has no strategy", only_strategy, out.strategies, "strategy");
  out.strategies = {only_strategy};
  return out;
}

// The sums, and the exit status.
int conclude(Call& call, const Library& library, const std::vector<Row>& rows) {
  auto count = [&](Verdict verdict) {
    return std::count_if(rows.begin(), rows.end(),
                         [&](const Row& row) { return row.outcome.verdict == verdict; });
  };
  if (rows.empty())
    throw Error(ErrorCode::usage,
                "no case was run: " + library.path + " has nothing that the one of --case is about")
        .help("leave out --case to run all cases of the library");
  const int64_t passed = count(Verdict::ok), failed = count(Verdict::failed),
                skipped = count(Verdict::skipped);
  std::optional<Error> error;
  if (failed > 0) {
    const Row& row = *std::find_if(rows.begin(), rows.end(), [](const Row& r) {
      return r.outcome.verdict == Verdict::failed;
    });
    error.emplace(ErrorCode::plugin_nonconforming, std::to_string(failed) + " of " +
                                                       std::to_string(rows.size()) +
                                                       " cases failed for " + library.path);
    error->help("meshwright plugins check " + library.path + " --case " +
                std::string(row.about->name) + " runs one of them alone");
  }
  if (!call.json) {
    call.out.write(std::to_string(passed) + " passed, " + std::to_string(failed) + " failed, " +
                   std::to_string(skipped) + " skipped\n");
    call.out.flush();
    return error ? call.fail({&*error, 1}) : 0;
  }
  boost::json::array cases;
  for (const Row& row : rows) cases.push_back(json_of(row));
  boost::json::object out{{"plugin", library.plugin},
                          {"version", library.version},
                          {"path", library.path},
                          {"passed", passed},
                          {"failed", failed},
                          {"skipped", skipped},
                          {"cases", cases}};
  if (error)
    for (const auto& member : report::errors_json({&*error, 1})) out[member.key()] = member.value();
  call.print_json(out);
  return error ? exit_status(error->code()) : 0;
}

int run_check(Call& call) {
  if (call.has("child")) return run_child(call);
  launch::check_current_folder();  // some cases load LibTorch
  const std::string given = call.positional(0), only = call.value("case");
  if (!only.empty()) case_of(only);
  auto seconds = static_cast<double>(call.number("timeout", 1).value_or(60));
  const std::string program = program_path().string();
  auto run = [&](const conf::Case& c, const std::string& name, const std::string& path) {
    std::vector<std::string> command = {program,  "plugins",          "check", path, "--child",
                                        "--case", std::string(c.name)};
    if (!name.empty()) command.insert(command.end(), {"--" + flag_of(c.scope), name});
    if (call.has("file")) command.insert(command.end(), {"--file", call.value("file")});
    for (const std::string& set : call.values("set")) command.insert(command.end(), {"--set", set});
    return Row{name, &c, conf::run_case_in_child(command, seconds)};
  };

  // The first case loads the library, so it always runs; the rest is known from its answer.
  const conf::Case& first = conf::cases().front();
  Row loading = run(first, "", given);
  // The parent shows the loader's refusal as if it had judged the library itself.
  for (const std::string& text : conf::values_of(loading.outcome.child.fields, "refused"))
    if (std::optional<Error> refused = base::error_in(text)) throw *refused;
  const Library library = library_of(loading.outcome.child.fields, given, call.value("strategy"));
  const std::string title =
      library.plugin.empty() ? library.path
                             : library.plugin + " " + library.version + " (" + library.path + ")";
  if (!call.json) call.out.write(report::printable(title) + "\n");

  std::vector<Row> rows;
  auto add = [&](Row row) {
    rows.push_back(std::move(row));
    if (!call.json) print(call, rows.back());
  };
  auto wanted = [&](const conf::Case& c) { return only.empty() || only == c.name; };
  if (wanted(first) || loading.outcome.verdict == Verdict::failed) add(std::move(loading));
  for (const conf::Case& c : conf::cases().subspan(1))
    if (c.scope == conf::Scope::library && library.loaded && wanted(c))
      add(run(c, "", library.path));
  auto add_all = [&](conf::Scope scope, const std::vector<std::string>& names) {
    for (const std::string& name : names)
      for (const conf::Case& c : conf::cases())
        if (c.scope == scope && wanted(c)) add(run(c, name, library.path));
  };
  add_all(conf::Scope::strategy, library.strategies);
  add_all(conf::Scope::dataset, library.datasets);
  add_all(conf::Scope::model, library.models);
  return conclude(call, library, rows);
}

}  // namespace

Verb plugins_check_verb() {
  Verb verb = declare(run_check, R"(
plugins check LIB
Run the conformance kit on a plugin

LIB is a file, or the name of a strategy that is found where plugins are looked for. Every case
runs in a process of its own, so that a crash or a hang is a result. Exit status 2 when a case
fails, or when the library is refused.

Data sets are opened, and models made, as a job says: --file names one that has them. A model is
tried with the defaults of its options where none is named. A strategy is tried in layouts of the
kit's own: of what --set says, its own table counts.

  meshwright plugins check ./libmeshwright_mine.so
  meshwright plugins check ./libmeshwright_mine.so --set distributed.mine.overlap=false
  meshwright plugins check fsdp2 --case mesh
  meshwright plugins check ./libmeshwright_lines.so --file job.toml

--case NAME        Run this case only.
--strategy NAME    Look at this strategy of the library only.
--file JOB         Take this job's [dataset] for the data sets of the library, its [model] for the
                   models.
--set
--timeout SECONDS  Limit of each case. Default: 60.
--json
)");
  verb.details += "\n\nCases:\n";
  size_t widest = 0;
  for (const conf::Case& c : conf::cases()) widest = std::max(widest, c.name.size());
  for (const conf::Case& c : conf::cases())
    verb.details += "  " + report::pad(c.name, widest + 2) + std::string(c.summary) + "\n";
  // Run one case in this process and answer on a pipe.
  verb.flags.push_back({.name = "child", .hidden = true});
  verb.flags.push_back({.name = "dataset", .argument = "NAME", .hidden = true});
  verb.flags.push_back({.name = "model", .argument = "NAME", .hidden = true});
  return verb;
}

}  // namespace meshwright::cli
