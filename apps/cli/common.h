// What several verbs do: load the job of a configuration file and say what there is to say.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>

#include "apps/cli/verb.h"
#include "engine/job/plan.h"
#include "engine/launch/ranks.h"
#include "engine/launch/supervisor.h"
#include "engine/train/preflight/before.h"
#include "engine/train/preflight/source.h"

namespace meshwright::cli {

// FILE and --set of the command line.
config::LoadOptions load_options(const Call& call);
// The same as it was read, by now or by the verb (Call::reading), with more of --set.
config::Source source_of(const Call& call, const std::vector<std::string>& more,
                         Diagnostics& problems);
// Loads the same with more of --set.
before::Reload reload_of(const Call& call);
// --world-size, else the environment.
int64_t world_size(const Call& call);
// Loads, says notices and warnings; nullopt after printing errors, whose exit status goes to
// `status`.
std::optional<plan::Job> load_job(Call& call, int& status);
// The job that generating or evaluating amounts to.
std::optional<plan::Job> load_job(const generate::Settings& settings, Diagnostics& problems);
// Where plugins are looked for; with --file, where that configuration says too.
loader::SearchPath search_path(const Call& call);
// The folder above bin/: an installation, or a build folder, which is a package as well.
std::filesystem::path installation();
// The plugin of a library, or of a strategy, a model family or a data set by its name.
const loader::LoadedPlugin& plugin_of(loader::Registry& registry, const std::string& what);
// A file or folder that comes with the program: in share/ of an installation, or in the source tree
// while developing. Throws Error(internal).
std::filesystem::path shipped(const std::filesystem::path& installed,
                              const std::filesystem::path& in_source);
// The schemas of every plugin that can be found here; libraries that cannot be used are left out.
config::PluginSchemas discovered_schemas(loader::Registry& registry);

// What the verbs that run ranks share: who started this process, the engine's library, the terminal
// that a rank's parent sees.

// Which rank of a launcher, or of a parent of ours, this process is; nullopt: none.
using Ranks = std::optional<launch::RankEnvironment>;
inline bool started_by_us(const Ranks& ranks) {
  return ranks && ranks->source == launch::RankEnvironment::Source::local;
}

// Runs a verb that may refuse the job before this process has met the other ranks. When it does, in
// a rank that a launcher started, the error is printed and the other ranks, which may not refuse by
// themselves, are told of it. Rank 0 alone says notices. Warns when variables look like those of a
// launcher that is not known. Throws Error(usage) when --nproc is given to a rank of a launcher's.
int refuse_together(Call& call, int (*verb)(Call& call, const Ranks& ranks));

// How many local ranks --nproc asks for; 1 without it. Refused before one of them starts, since
// they would bring the host down: more than a machine file may give a host, Error(usage), and more
// than the host's memory holds by themselves, Error(memory_exceeded).
int64_t count_of_ranks(const Call& call, const Ranks& ranks);

// What rank 0 writes to.
struct Screen {
  bool live = false;  // a terminal
  int width = 80;
  bool colour = false, unicode = true;
};
// This process's, or what its parent told of its own.
Screen screen_of(const Call& call, bool started_by_us);
// The program as this process was called, as a shell takes it.
std::string called_as();
// The command that started this process, or its launcher, as a shell takes it again; empty for a
// rank of another launcher.
std::string command_again(const Call& call, const Ranks& ranks);

// Runs this process's rank: calls `entry` of libmeshwright_engine.so, which lies beside the SDK
// library; loading it here keeps LibTorch out of all other verbs. It takes a pointer to `options`
// and gives an exit status. A rank of several that failed ends the process at once: threads of a
// broken connection must not keep it from ending.
int run_rank(Call& call, const Ranks& ranks, const char* entry, const void* options);

// `count` local ranks of this verb: the program again, with FILE, --set and those of `flags` that
// were given.
launch::LocalJob local_ranks(const Call& call, const char* verb,
                             std::initializer_list<const char*> flags, int64_t count,
                             const Screen& screen);

}  // namespace meshwright::cli
