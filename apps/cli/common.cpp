#include "apps/cli/common.h"

#include <sys/auxv.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "apps/performance/steptime/machine.h"
#include "engine/config/reading.h"
#include "engine/job/before_start.h"
#include "engine/launch/spawn.h"
#include "sdk/base/host_facts.h"
#include "sdk/base/shell_word.h"
#include "sdk/base/words.h"

namespace meshwright::cli {

config::LoadOptions load_options(const Call& call) {
  config::LoadOptions options;
  options.file = call.positional(0);
  options.sets = call.values("set");
  return options;
}

config::Source source_of(const Call& call, const std::vector<std::string>& more,
                         Diagnostics& problems) {
  if (call.reading) return call.reading->source(more, problems);
  config::LoadOptions options = load_options(call);
  options.sets.insert(options.sets.end(), more.begin(), more.end());
  return config::Source::load(options, problems);
}

before::Reload reload_of(const Call& call) {
  return [&call](const std::vector<std::string>& sets, Diagnostics& problems) {
    return plan::load_job(source_of(call, sets, problems), problems);
  };
}

int64_t world_size(const Call& call) {
  if (std::optional<int64_t> given = call.number("world-size", 1)) return *given;
  return plan::world_size_from_environment();
}

std::optional<plan::Job> load_job(Call& call, int& status) {
  Diagnostics diagnostics;
  std::optional<plan::Job> job = plan::load_job(source_of(call, {}, diagnostics), diagnostics);
  call.say(diagnostics);
  if (diagnostics.ok()) return job;
  status = call.fail(diagnostics.errors());
  return std::nullopt;
}

std::optional<plan::Job> load_job(const generate::Settings& settings, Diagnostics& problems) {
  config::LoadOptions options;
  options.sets = settings.sets;
  return plan::load_job(config::Source::parse(settings.toml, options, problems), problems);
}

std::filesystem::path installation() { return program_path().parent_path().parent_path(); }

loader::SearchPath search_path(const Call& call) {
  loader::SearchPath search;
  if (!call.has("file")) return search;
  Diagnostics diagnostics;
  config::LoadOptions options;
  options.file = call.value("file");
  config::Source source = config::Source::load(options, diagnostics);
  diagnostics.throw_if_any();
  search.files = source.plugin_files();
  search.folders = source.plugin_folders();
  return search;
}

const loader::LoadedPlugin& plugin_of(loader::Registry& registry, const std::string& what) {
  if (what.find('/') != std::string::npos || what.ends_with(".so"))
    return registry.load(std::filesystem::absolute(what), "command line");
  try {
    return *registry.find(what).plugin;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::plugin_not_found) throw;
    for (const auto& find :
         {+[](loader::Registry& in, const std::string& name) { return in.find_model(name).plugin; },
          +[](loader::Registry& in, const std::string& name) {
            return in.find_dataset(name).plugin;
          }})
      try {
        return *find(registry, what);
      } catch (const Error& other) {
        if (other.code() != ErrorCode::plugin_not_found) throw;
      }
    throw;
  }
}

std::filesystem::path shipped(const std::filesystem::path& installed,
                              const std::filesystem::path& in_source) {
  std::error_code failed;
  for (const std::filesystem::path& place :
       {installation() / "share" / installed, MESHWRIGHT_SOURCE_TREE / in_source})
    if (std::filesystem::exists(place, failed)) return place.lexically_normal();
  throw Error(ErrorCode::internal, "share/" + installed.string() + " is not installed")
      .help("install the whole package with cmake --install");
}

config::PluginSchemas discovered_schemas(loader::Registry& registry) {
  config::PluginSchemas out;
  for (const loader::Listing& listing : registry.list()) {
    if (listing.plugin == nullptr) continue;
    for (const loader::StrategyInfo& info : listing.plugin->strategies)
      out.strategies.push_back({info.name, info.aliases, info.schema});
    for (const loader::ComponentInfo& info : listing.plugin->models)
      out.components.push_back({info.schema});
    for (const loader::ComponentInfo& info : listing.plugin->datasets) {
      OptionSchema schema = info.schema;
      out.components.push_back({schema});
      schema.table = "validation_" + schema.table;
      out.components.push_back({schema});
    }
  }
  return out;
}

namespace {

Ranks ranks_of(Call& call) {
  Ranks ranks = launch::detect_ranks(launch::process_environment());
  if (std::vector<std::string> names = launch::unrecognised_launcher(launch::process_environment());
      !names.empty()) {
    Diagnostics told;
    told.warning("this process is no rank of a larger job and works alone, but " +
                 text::join(names, ", ") + " looks as if a launcher had started several: if so, " +
                 launch::kSetRankVariables);
    call.say(told);
  }
  if (ranks && call.has("nproc") && !started_by_us(ranks))
    throw Error(ErrorCode::usage,
                std::string("--nproc starts ranks here, but this process already is rank ") +
                    std::to_string(ranks->rank) + " of " + std::to_string(ranks->world_size) +
                    " (" + launch::source_name(ranks->source) + ")")
        .help("leave out --nproc under a launcher")
        .help("unset RANK, WORLD_SIZE and the launcher's other variables to start local ranks");
  return ranks;
}

// Between two parallel loops LibTorch's threads turn round and round for a millisecond or more.
// Where others work on the cores, too, each loop then waits for threads that wait for a core: steps
// on full cores took ten to thirty times as long. After 2,000 turns they sleep, which costs a toy
// model 5% on free cores and larger ones nothing; sleeping at once (OMP_WAIT_POLICY=passive) costs
// it 150%. Read once, when the library is loaded.
void let_threads_sleep() {
  for (const char* chosen : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"})
    if (std::getenv(chosen) != nullptr) return;
  ::setenv("GOMP_SPINCOUNT", "2000", 0);
}

int run_in_engine(const char* entry, const void* options) {
  launch::raise_descriptor_limit();
  let_threads_sleep();
  return launch::engine_function<int(const void*)>(entry)(options);
}

}  // namespace

int refuse_together(Call& call, int (*verb)(Call& call, const Ranks& ranks)) {
  const Ranks ranks = ranks_of(call);
  if (!ranks || started_by_us(ranks) || ranks->world_size == 1) return verb(call, ranks);
  call.quiet = ranks->rank != 0;
  int status = 0;
  try {
    status = verb(call, ranks);
  } catch (const Error& error) {
    status = call.fail({&error, 1});
  }
  if (!call.failure) return status;
  call.out.flush();
  try {
    run_in_engine("meshwright_refuse", &*call.failure);
  } catch (const Error&) {  // without the engine's library there is no way to the others
  }
  ::_exit(status);
}

int64_t count_of_ranks(const Call& call, const Ranks& ranks) {
  const int64_t wanted = call.number("nproc", 1).value_or(1);
  if (started_by_us(ranks)) return wanted;  // its parent has asked
  if (wanted > steptime::kMostRanksOfAHost)
    throw Error(ErrorCode::usage, "--nproc " + std::to_string(wanted) + ": a host has 1 to " +
                                      std::to_string(steptime::kMostRanksOfAHost) + " ranks")
        .help("--nproc 8, as many as a host has in training");
  if (wanted > 1) plan::check_room_of_ranks(wanted, plan::host_memory(), "--nproc");
  return wanted;
}

Screen screen_of(const Call& call, bool started_by_us) {
  Screen screen{::isatty(1) == 1, call.out_style.width, call.out_style.colour,
                call.out_style.unicode};
  if (!started_by_us) return screen;
  const char* terminal = std::getenv("MESHWRIGHT_TERMINAL");
  if (terminal && *terminal) {
    screen.live = true;
    screen.width = std::atoi(terminal);
    screen.colour = std::getenv("MESHWRIGHT_COLOUR") != nullptr;
  }
  return screen;
}

namespace {

// Of this process, as a shell takes them.
std::vector<std::string> command_words() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> out;
  for (std::string word; std::getline(in, word, '\0');) out.push_back(text::shell_word(word));
  return out;
}

}  // namespace

std::string called_as() {
  const std::vector<std::string> words = command_words();
  return words.empty() ? text::shell_word(program_path().string()) : words[0];
}

std::string command_again(const Call& call, const Ranks& ranks) {
  if (!call.command.empty()) return call.command;
  const char* told = std::getenv("MESHWRIGHT_COMMAND");
  if (ranks) return started_by_us(ranks) && told != nullptr ? told : "";
  return text::join(command_words(), " ");
}

int run_rank(Call& call, const Ranks& ranks, const char* entry, const void* options) {
  int status = run_in_engine(entry, options);
  bool one_of_several = ranks && (ranks->world_size > 1 || started_by_us(ranks));
  if (status != 0 && status != launch::kPreempted && one_of_several) {
    call.out.flush();
    ::_exit(status);
  }
  return status;
}

launch::LocalJob local_ranks(const Call& call, const char* verb,
                             std::initializer_list<const char*> flags, int64_t count,
                             const Screen& screen) {
  launch::LocalJob job;
  job.argv = {program_path().string(), verb, call.positional(0)};
  for (const std::string& set : call.values("set")) job.argv.insert(job.argv.end(), {"--set", set});
  for (const std::string flag : flags)
    if (call.has(flag) && call.values(flag).empty())
      job.argv.push_back("--" + flag);
    else
      for (const std::string& value : call.values(flag))
        job.argv.push_back("--" + flag + "=" + value);
  job.ranks = count;
  if (screen.live)
    job.environment.emplace_back("MESHWRIGHT_TERMINAL", std::to_string(screen.width));
  if (screen.colour) job.environment.emplace_back("MESHWRIGHT_COLOUR", "1");
  job.environment.emplace_back("MESHWRIGHT_COMMAND", command_again(call, std::nullopt));
  return job;
}

}  // namespace meshwright::cli
