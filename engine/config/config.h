// The config.json of a model that is named by that file or by the folder that it lies in.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/options.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright::base {

inline std::filesystem::path model_file(const std::filesystem::path& config_or_folder) {
  std::error_code failed;
  return std::filesystem::is_directory(config_or_folder, failed) ? config_or_folder / "config.json"
                                                                 : config_or_folder;
}

}  // namespace meshwright::base

namespace meshwright::config {

// Configuration: one TOML file, overrides and the environment, as checked tables that remember
// where each value came from.

// The options of one strategy as its plugin declares them.
struct StrategySchema {
  std::string strategy;              // canonical name
  std::vector<std::string> aliases;  // other accepted names
  OptionSchema schema;               // table "distributed.<options_table>", owner = strategy
};

// The tables of plugins that are known: of strategies, and of model families and data sets
// ("model.<name>", "dataset.<name>", "validation_dataset.<name>").
struct PluginSchemas {
  struct Component {
    OptionSchema schema;
    bool active = false;  // the file asks for it
  };
  PluginSchemas() = default;
  PluginSchemas(std::vector<StrategySchema> of_strategies, std::vector<Component> others = {})
      : strategies(std::move(of_strategies)), components(std::move(others)) {}
  std::vector<StrategySchema> strategies;
  std::vector<Component> components;
};

struct LoadOptions {
  std::filesystem::path file;     // may be empty: overrides and defaults only
  std::vector<std::string> sets;  // "a.b=c", in order; later wins
  std::function<std::optional<std::string>(const std::string&)>
      environment;  // empty: the process environment
};

// First pass: parsed, interpolated and overridden, not yet checked against schemas. Knows what is
// needed to find the plugins.
inline constexpr const char *kTextComponent = "text", *kBytes = "bytes";
class Source {
 public:
  // Problems go to `diagnostics`; a file that cannot be read or parsed leaves an empty source and
  // an error.
  static Source load(const LoadOptions& options, Diagnostics& diagnostics);
  // The same from text that is already in memory; `options.file` only names it.
  static Source parse(std::string_view text, const LoadOptions& options, Diagnostics& diagnostics);
  Source();
  Source(Source&&) noexcept;
  Source& operator=(Source&&) noexcept;
  ~Source();

  std::string strategy() const;  // as written; "fsdp2" when absent
  Origin strategy_origin() const;
  std::vector<std::filesystem::path> plugin_files()
      const;  // [plugins] load, made absolute from the file's folder
  std::vector<Origin> plugin_file_origins() const;            // where each of them was written
  std::vector<std::filesystem::path> plugin_folders() const;  // [plugins] path
  // Of both, as written in the file, those that are not absolute.
  std::vector<std::string> relative_plugins() const;
  // Names of the sub-tables of [distributed] the engine does not own.
  std::vector<std::string> strategy_tables() const;
  // The plugin's component that [model], [dataset] or [validation_dataset] asks for: its `plugin`,
  // as written, or kTextComponent for a text that has a tokenizer(); "": none.
  std::string component(const char* table) const;
  // The folder whose tokens a [dataset] or [validation_dataset] of kind "text" names are learnt, by
  // its `tokenizer`, or because the language_folder() of [model] has one; "": bytes are, or it is
  // no such table.
  std::string tokenizer(const char* table) const;
  Origin component_origin(const char* table) const;
  // Names of the sub-tables of [model], [dataset] and [validation_dataset], dotted.
  std::vector<std::string> component_tables() const;
  // Keys right in [distributed] that the engine does not own: options of a strategy in the flat
  // form, or mistakes.
  std::vector<std::string> foreign_keys() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// Second pass: everything checked, defaults filled in.
struct Config {
  std::filesystem::path file;
  std::string requested_strategy;  // as written
  std::map<std::string, Options>
      tables;  // "run", "model", "dist_env", "distributed", "distributed.fsdp2", ...
  std::map<std::string, std::vector<Options>>
      lists;  // of list_schemas(): "optimizer.group", in the order of the file
  SharedOptions shared;

  const Options& table(const std::string& name) const;              // Error(internal) when unknown
  const std::vector<Options>& list(const std::string& name) const;  // the same
  // What the strategy `name` reads (its own table from `schemas`).
  StrategyConfig strategy_config(const StrategySchema& schema) const;
};

// Checks the source against the engine's tables and the plugins' ones. `active` is the strategy
// that will run; tables of other known strategies are type-checked, unknown ones give a warning.
// All problems are collected.
Config resolve(const Source& source, const PluginSchemas& plugins, const std::string& active,
               Diagnostics& diagnostics);

// The error, with the place where its key was written when the configuration has it and the error
// does not.
Error placed(Error error, const Config& config);

// The config.json of the model that [model] names, or its folder, and the key that says so:
// "config" before "pretrained". An empty path: it names none.
struct ModelPath {
  std::string path, key;
};
ModelPath model_path(const Options& model);
// Its config.json; empty: there is none.
std::filesystem::path model_config_file(const Options& model);

// The folder of the run that [run] names, <run.dir>/<run.name>, and its files that other places
// look for.
std::filesystem::path run_folder(const Options& run);
inline constexpr const char* kResolvedFile = "config.resolved.toml";

// Every table the engine itself owns, in the order of the documentation.
std::vector<OptionSchema> engine_schemas();
// Arrays of tables, [[optimizer.group]]: the schema of one of their tables.
inline constexpr const char* kGroupTable = "optimizer.group";
std::vector<OptionSchema> list_schemas();
bool is_list(const std::string& table);

// Configurations beside each other, key by key.

// A key with its table and its value as TOML: "optimizer.lr", "0.001".
struct Setting {
  std::string key, value;
  bool operator==(const Setting&) const = default;
};
// Every value of a TOML file, in its order; a list is one value. A syntax error goes to
// `diagnostics`, and nothing is returned then.
std::vector<Setting> settings_of(std::string_view toml, const std::string& file,
                                 Diagnostics& diagnostics);
// The text that a setting's value says; nullopt where that is no string.
std::optional<std::string> text_of(std::string_view value);

// A key whose values are not all the same. `values`: one for each configuration; empty: it is not
// there.
struct Difference {
  std::string key;
  std::vector<std::string> values;
};
std::vector<Difference> differences(const std::vector<std::vector<Setting>>& configurations);
// Those of `found` that change something. A key that one side alone has belongs to a table that is
// not in use on the other: of a table that `config` has it counts where it is not the default, of
// another strategy's or data set's never.
std::vector<Difference> with_effect(std::vector<Difference> found, const Config& config);

}  // namespace meshwright::config
