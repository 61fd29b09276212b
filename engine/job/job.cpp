#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "engine/job/adapter_folder.h"
#include "engine/job/plan.h"

namespace meshwright::plan {
namespace {

config::StrategySchema schema_of(const loader::StrategyInfo& info) {
  return {info.name, info.aliases, info.schema};
}

// The strategy's own rules. An option whose value was refused stands at its default here, so what a
// rule says about it is left out: all else is true whatever that value becomes.
void check_rules(const loader::LoadedStrategy& strategy, const StrategyConfig& config,
                 Diagnostics& diagnostics) {
  std::set<std::string, std::less<>> refused;
  for (const Error& error : diagnostics.errors())
    for (std::string& key : error.keys()) refused.insert(std::move(key));
  Diagnostics found(std::move(refused));
  try {
    strategy.strategy->validate(config, found);
  } catch (const Error& error) {  // must not hide what was found before
    diagnostics.add(error);
  }
  for (const Error& error : found.errors()) diagnostics.add(error);
  for (const std::string& text : found.notices()) diagnostics.notice(text);
  for (const std::string& text : found.warnings()) diagnostics.warning(text);
}

// The model family's own rules, once its options are right.
void check_model_rules(const Job& job, Diagnostics& diagnostics) {
  const std::optional<JobModel> model = model_of(job);
  if (!model || !diagnostics.ok()) return;
  Diagnostics found;
  try {
    model->family->validate(model->request, found);
  } catch (const Error& error) {
    found.add(error);
  }
  for (const Error& error : found.errors()) diagnostics.add(config::placed(error, job.config));
  for (const std::string& text : found.notices()) diagnostics.notice(text);
  for (const std::string& text : found.warnings()) diagnostics.warning(text);
}

// Else a job that should run a bundled strategy would run another one of that name.
void tell_hidden(const loader::Registry& registry, const loader::LoadedStrategy& strategy,
                 Diagnostics& diagnostics) {
  const loader::LoadedPlugin& plugin = *strategy.plugin;
  for (const std::filesystem::path& file : registry.hidden_by(strategy))
    diagnostics.warning("the strategy " + strategy.info->name + " is that of " + plugin.name + " " +
                            plugin.version + " (" + plugin.path.string() + ", " + plugin.place +
                            "); it hides the one of " + file.string(),
                        {"distributed.strategy"});
}

// The plugins of [model] and of the data, and the tables of all plugins of these sorts where the
// file has some that may be theirs. False after an error.
bool find_components(const config::Source& source, Job& job,
                     std::vector<config::PluginSchemas::Component>& schemas,
                     Diagnostics& diagnostics) {
  bool found = true;
  auto add = [&](OptionSchema schema, const char* table, bool active) {
    schema.table = std::string(table) + schema.table.substr(schema.table.find('.'));
    if (std::none_of(schemas.begin(), schemas.end(),
                     [&](const auto& one) { return one.schema.table == schema.table; }))
      schemas.push_back({std::move(schema), active});
  };
  auto find = [&](const char* table, auto& into, auto finder) {
    const std::string name = source.component(table);
    if (name.empty()) return;
    try {
      into = ((*job.registry).*finder)(name, std::string(table) + ".plugin");
      add(into->info->schema, table, true);
    } catch (Error& error) {
      if (error.key().empty()) error.key(std::string(table) + ".plugin");
      diagnostics.add(error.at(source.component_origin(table)));
      found = false;
    }
  };
  find("model", job.model, &loader::Registry::find_model);
  find("dataset", job.dataset, &loader::Registry::find_dataset);
  find("validation_dataset", job.validation_dataset, &loader::Registry::find_dataset);
  const std::vector<std::string> tables = source.component_tables();
  if (std::all_of(tables.begin(), tables.end(), [&](const std::string& table) {
        return std::any_of(schemas.begin(), schemas.end(),
                           [&](const auto& one) { return one.schema.table == table; });
      }))
    return found;
  for (const loader::Listing& listing : job.registry->list()) {
    if (listing.plugin == nullptr) continue;
    for (const loader::ComponentInfo& info : listing.plugin->models)
      add(info.schema, "model", false);
    for (const char* table : {"dataset", "validation_dataset"})
      for (const loader::ComponentInfo& info : listing.plugin->datasets)
        add(info.schema, table, false);
  }
  return found;
}

}  // namespace

std::optional<Job> load_job(const config::LoadOptions& options, Diagnostics& diagnostics) {
  return load_job(config::Source::load(options, diagnostics), diagnostics);
}

std::optional<Job> load_job(const config::Source& source, Diagnostics& diagnostics) {
  for (const Error& error : diagnostics.errors())
    if (error.code() == ErrorCode::file_unreadable || error.code() == ErrorCode::toml_syntax)
      return std::nullopt;
  Job job;
  loader::SearchPath search;
  search.files = source.plugin_files();
  search.folders = source.plugin_folders();
  job.registry = std::make_unique<loader::Registry>(search);
  bool found = true;
  // What [plugins] load names was asked for by name, so each of its mistakes is told, at its own
  // place.
  std::vector<Origin> origins = source.plugin_file_origins();
  for (size_t i = 0; i < search.files.size(); ++i) try {
      job.registry->load_named(search.files[i]);
    } catch (Error& error) {
      diagnostics.add(error.key("plugins.load").at(origins[i]));
      found = false;
    }
  if (found) try {
      job.strategy = job.registry->find(source.strategy());
      job.schemas.push_back(schema_of(*job.strategy.info));
      tell_hidden(*job.registry, job.strategy, diagnostics);
    } catch (Error& error) {
      if (error.key().empty()) error.key("distributed.strategy");
      diagnostics.add(error.at(source.strategy_origin()));
      found = false;
    }
  // Other strategies matter only where the file has tables, or keys in the old flat form, that may
  // be theirs.
  auto own_table = [&](const std::string& table) {
    return found && job.strategy.info->schema.table == "distributed." + table;
  };
  std::vector<std::string> tables = source.strategy_tables(), keys = source.foreign_keys();
  if (std::any_of(tables.begin(), tables.end(),
                  [&](const std::string& table) { return !own_table(table); }) ||
      std::any_of(keys.begin(), keys.end(), [&](const std::string& key) {
        return !found || job.strategy.info->schema.find(key) == nullptr;
      })) {
    for (const loader::Listing& listing : job.registry->list()) {
      if (listing.plugin == nullptr) continue;
      for (const loader::StrategyInfo& info : listing.plugin->strategies)
        if (std::none_of(job.schemas.begin(), job.schemas.end(),
                         [&](const auto& s) { return s.strategy == info.name; }))
          job.schemas.push_back(schema_of(info));
    }
  }
  std::vector<config::PluginSchemas::Component> components;
  const bool all_found = find_components(source, job, components, diagnostics) && found;
  job.config = config::resolve(source, {job.schemas, std::move(components)},
                               found ? job.strategy.info->name : std::string(), diagnostics);
  if (!all_found) return std::nullopt;
  take_from_adapter_folder(job.config, diagnostics);
  check_rules(job.strategy, job.config.strategy_config(job.schemas.front()), diagnostics);
  check_model_rules(job, diagnostics);
  return job;
}

int64_t world_size_from_environment() {
  const char* text = std::getenv("WORLD_SIZE");
  if (text == nullptr || *text == '\0') return 1;
  int64_t size = 0;
  std::string_view view(text);
  auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), size);
  if (error != std::errc() || end != view.data() + view.size() || size < 1)
    throw Error(ErrorCode::bad_environment,
                "WORLD_SIZE = \"" + std::string(text) + "\" is not a number of ranks")
        .help("unset WORLD_SIZE, or set it to a positive integer");
  return size;
}

}  // namespace meshwright::plan
