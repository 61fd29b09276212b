// Finds, judges and loads plugins. Nothing of a plugin runs before its build facts match
// ours; nothing is ever unloaded.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/components.h"
#include "meshwright/data/dataset_kind.h"
#include "meshwright/model/model_family.h"
#include "meshwright/strategy.h"

namespace meshwright::detail {
struct PluginCode;
}

namespace meshwright::loader {

// The folders of MESHWRIGHT_PLUGIN_PATH that are left out, because they are not absolute: they
// would mean the current folder.
std::vector<std::string> relative_plugin_folders();

// Where to look, in order; the first hit wins.
struct SearchPath {
  std::vector<std::filesystem::path> files;    // [plugins] load
  std::vector<std::filesystem::path> folders;  // [plugins] path
  // Then MESHWRIGHT_PLUGIN_PATH (colon-separated folders), the user's data folder ($XDG_DATA_HOME
  // or ~/.local/share, meshwright/plugins) and the installation's folder. Never the current folder.
  bool standard_places = true;
};

// A model family or a kind of data set.
struct ComponentInfo {
  std::string name;
  std::vector<std::string> aliases;
  std::string summary;
  // Table "model.<name>" or "dataset.<name>"; of a strategy "distributed.<options_table>".
  OptionSchema schema;
  const meshwright_component* component = nullptr;  // in the descriptor; of a strategy none
};
struct StrategyInfo : ComponentInfo {
  const meshwright_strategy* strategy = nullptr;
  uint64_t capabilities = 0;
};

// A verified and loaded library.
struct LoadedPlugin {
  std::filesystem::path path;
  std::string place;  // "[plugins] load", "MESHWRIGHT_PLUGIN_PATH", "installation"...
  std::string name, version, vendor, license, summary;
  std::map<std::string, std::string> facts;
  std::string facts_hash;  // 16 hex digits
  std::vector<StrategyInfo> strategies;
  std::vector<ComponentInfo> models, datasets;
  const meshwright_plugin* descriptor = nullptr;
  std::filesystem::path runtime_half;  // empty: one library plans and runs
  const detail::PluginCode* code = nullptr;
};

// "acme 1.0.0 (/opt/libmeshwright_acme.so)"
std::string text_of(const LoadedPlugin& plugin);

// A strategy ready for use. Its hooks throw Error only, with a note on plugin, hook and rank.
struct LoadedStrategy {
  const LoadedPlugin* plugin = nullptr;
  const StrategyInfo* info = nullptr;
  std::shared_ptr<Strategy> strategy;
};

// A model family or a kind of data set, ready for use. `made` throws Error only.
template <class Made>
struct LoadedComponent {
  const LoadedPlugin* plugin = nullptr;
  const ComponentInfo* info = nullptr;
  std::shared_ptr<Made> made;
};
using LoadedModel = LoadedComponent<ModelFamily>;
using LoadedDataset = LoadedComponent<DatasetKind>;

// One candidate as `plugins list` shows it: loaded, or refused with its error.
struct Listing {
  std::filesystem::path path;
  std::string place;
  const LoadedPlugin* plugin = nullptr;
  std::optional<Error> refused;
};

class Registry {
 public:
  explicit Registry(const SearchPath& search);
  ~Registry();

  // The plugin that has a strategy of this name or alias (any letter case). Throws Error(4xx): not
  // found lists every place tried and the nearest name; a hit that cannot be used stops with its
  // own error.
  LoadedStrategy find(const std::string& strategy);
  // The same for what a plugin's model.plugin and dataset.plugin name; `key` is where that was
  // written. One instance of each.
  LoadedModel find_model(const std::string& name, const std::string& key = "model.plugin");
  LoadedDataset find_dataset(const std::string& name, const std::string& key = "dataset.plugin");
  // Judges and loads one file, whatever it contains.
  const LoadedPlugin& load(const std::filesystem::path& file, const std::string& place);
  // A file of [plugins] load. Its strategies are made, so that what they register (plans of tensor
  // parallelism) is there for every strategy.
  const LoadedPlugin& load_named(const std::filesystem::path& file);
  // One instance each; the first call makes it.
  LoadedStrategy create(const LoadedPlugin& plugin, const StrategyInfo& info);
  LoadedModel create_model(const LoadedPlugin& plugin, const ComponentInfo& info);
  LoadedDataset create_dataset(const LoadedPlugin& plugin, const ComponentInfo& info);
  // Other libraries that say that they have a strategy of this name, which nobody can reach.
  std::vector<std::filesystem::path> hidden_by(const LoadedStrategy& found) const;
  // Every candidate in every place, loaded or refused.
  std::vector<Listing> list();
  // Where plugins are looked for, in order: (place, file or folder).
  std::vector<std::pair<std::string, std::filesystem::path>> places() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The facts this engine was built with.
const std::map<std::string, std::string>& engine_facts();

}  // namespace meshwright::loader
