// What several verbs do: load the job of a configuration file and say what there is to say.
#pragma once

#include <optional>

#include "apps/cli/verb.h"
#include "engine/job/plan.h"
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
// The plugin of a library, or of a strategy, a model family or a data set by its name.
const loader::LoadedPlugin& plugin_of(loader::Registry& registry, const std::string& what);
// The schemas of every plugin that can be found here; libraries that cannot be used are left out.
config::PluginSchemas discovered_schemas(loader::Registry& registry);

}  // namespace meshwright::cli
