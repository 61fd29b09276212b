#include "engine/cli/common.h"

#include <filesystem>

namespace meshwright::cli {

config::LoadOptions load_options(const Call& call) {
  config::LoadOptions options;
  options.file = call.positional(0);
  options.sets = call.values("set");
  return options;
}

before::Reload reload_of(const Call& call) {
  return [&call](const std::vector<std::string>& sets, Diagnostics& problems) {
    config::LoadOptions options = load_options(call);
    options.sets.insert(options.sets.end(), sets.begin(), sets.end());
    return plan::load_job(options, problems);
  };
}

int64_t world_size(const Call& call) {
  if (std::optional<int64_t> given = call.number("world-size", 1)) return *given;
  return plan::world_size_from_environment();
}

std::optional<plan::Job> load_job(Call& call, int& status) {
  Diagnostics diagnostics;
  std::optional<plan::Job> job = plan::load_job(load_options(call), diagnostics);
  call.say(diagnostics);
  if (diagnostics.ok()) return job;
  status = call.fail(diagnostics.errors());
  return std::nullopt;
}

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
  return *registry.find(what).plugin;
}

std::vector<config::StrategySchema> discovered_schemas(loader::Registry& registry) {
  std::vector<config::StrategySchema> out;
  for (const loader::Listing& listing : registry.list()) {
    if (listing.plugin == nullptr) continue;
    for (const loader::StrategyInfo& info : listing.plugin->strategies)
      out.push_back({info.name, info.aliases, info.schema});
  }
  return out;
}

}  // namespace meshwright::cli
