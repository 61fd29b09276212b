#include "apps/cli/common.h"

#include <filesystem>

#include "engine/config/reading.h"

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

}  // namespace meshwright::cli
