#include "engine/plugins/registry.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <string_view>
#include <type_traits>

#define BOOST_DLL_USE_STD_FS 1
#include <boost/dll/shared_library.hpp>

#include "engine/config/config.h"
#include "engine/plugins/verify_library.h"
#include "sdk/base/checks.h"
#include "sdk/base/host_facts.h"
#include "sdk/base/plugin_guard.h"
#include "sdk/base/used_up.h"
#include "sdk/base/words.h"

namespace meshwright::loader {
namespace {

namespace fs = std::filesystem;

struct Place {
  std::string label;
  fs::path folder;
};

// Folder of the SDK library: an embedding program may lie anywhere.
fs::path sdk_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&build_facts), &info) == 0 ||
      info.dli_fname == nullptr)
    return {};
  std::error_code failed;
  fs::path real = fs::canonical(info.dli_fname, failed);
  return failed ? fs::path() : real.parent_path();
}

// An empty path stays empty, which std::filesystem would throw for.
fs::path absolute_unless_empty(const fs::path& path) {
  return path.empty() ? path : fs::absolute(path);
}

std::vector<Place> places_of(const SearchPath& search) {
  std::vector<Place> out;
  auto add = [&](const char* label, const fs::path& folder) {
    if (folder.empty()) return;
    for (const Place& place : out)
      if (place.folder == folder.lexically_normal()) return;
    out.push_back({label, folder.lexically_normal()});
  };
  for (const fs::path& folder : search.folders)
    add("[plugins] path", absolute_unless_empty(folder));
  if (!search.standard_places) return out;
  if (const char* env = std::getenv("MESHWRIGHT_PLUGIN_PATH"))
    for (const std::string& folder : text::split_names(env, ':'))
      if (fs::path(folder).is_absolute()) add("MESHWRIGHT_PLUGIN_PATH", folder);
  const char *data = std::getenv("XDG_DATA_HOME"), *home = std::getenv("HOME");
  if (data != nullptr && *data == '/')
    add("user data", fs::path(data) / "meshwright/plugins");
  else if (home != nullptr && *home == '/')
    add("user data", fs::path(home) / ".local/share/meshwright/plugins");
  if (const fs::path program = program_path(); fs::exists(program))
    add("installation", program.parent_path().parent_path() / "lib/meshwright/plugins");
  if (fs::path folder = sdk_folder(); !folder.empty())
    add("installation", folder / "meshwright/plugins");
  return out;
}

// libmeshwright_*.so in a folder, sorted.
std::vector<fs::path> candidates_in(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code failed;
  for (fs::directory_iterator it(folder, failed), end; !failed && it != end; it.increment(failed)) {
    std::string name = it->path().filename().string();
    if (name.starts_with("libmeshwright_") && name.ends_with(".so")) out.push_back(it->path());
  }
  if (const std::optional<Error> limit =
          detail::used_up("cannot list " + folder.string() + ": ", failed.message()))
    throw *limit;
  std::sort(out.begin(), out.end());
  return out;
}

// "libfoo.so.1" of the dynamic linker's words when it is another library that it did not find.
std::string missing_library(const std::string& words, const fs::path& file) {
  const size_t end = words.find(": cannot open shared object file: No such file");
  if (end == std::string::npos) return "";
  const size_t blank = words.find_last_of(" (", end);
  const std::string name = words.substr(blank == std::string::npos ? 0 : blank + 1,
                                        end - (blank == std::string::npos ? 0 : blank + 1));
  return name == file.string() ? "" : name;
}

boost::dll::shared_library open(const fs::path& file) {
  boost::dll::shared_library library;
  // RTLD_NODELETE has no name in Boost. The handle goes away, the mapping stays for good.
  auto mode = boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local |
              static_cast<boost::dll::load_mode::type>(RTLD_NODELETE);
  try {
    // The constructors of its static objects run.
    detail::PluginCall call(detail::plugin_code(file.string()), "being loaded");
    library.load(file.string(), mode);
    return library;
  } catch (const std::exception& error) {
    const std::string words = error.what(), missing = missing_library(words, file);
    if (!missing.empty())
      throw Error(ErrorCode::plugin_unresolved,
                  file.string() + " needs the library " + missing + ", which is not found")
          .help("install it, or add its folder to LD_LIBRARY_PATH; `ldd " + file.string() +
                "` shows all that it needs")
          .help(
              "a library of the plugin's own is found beside it with the link option "
              "-Wl,-rpath,'$ORIGIN'");
    throw Error(ErrorCode::plugin_unresolved, "cannot load " + file.string() + ": " + words)
        .help(
            "link the plugin with -z defs (meshwright_add_plugin() does) so that a missing symbol "
            "shows when it is built");
  }
}

// What a plugin may have several of, each found by its name.
struct Sort {
  const char* what;  // "strategy"
  const char* many;  // "strategies"
  std::vector<std::string> VerifiedLibrary::* listed;
};
constexpr Sort kStrategies{"strategy", "strategies", &VerifiedLibrary::strategies},
    kModels{"model", "models", &VerifiedLibrary::models},
    kDatasets{"data set", "data sets", &VerifiedLibrary::datasets};

template <class Info>
void refuse_twins(const LoadedPlugin& plugin, const std::vector<Info>& ours,
                  const LoadedPlugin& other, const std::vector<Info>& theirs, const Sort& sort) {
  for (const Info& one : ours) {
    std::vector<std::string> names = one.aliases;
    names.insert(names.begin(), one.name);
    for (const std::string& name : names)
      for (const Info& its : theirs)
        if (answers_to(its, name))
          throw Error(ErrorCode::plugin_duplicate,
                      std::string(sort.what) + " " + name + " of " + plugin.path.string() +
                          " is already there, from " + other.path.string())
              .help("remove one of the two libraries from where plugins are looked for");
  }
}

// What create() of a descriptor made, guarded. Throws Error(plugin_create_threw |
// plugin_create_failed).
template <class Made, class Raw>
std::shared_ptr<Made> make(const LoadedPlugin& plugin, const Raw& raw, const std::string& what) {
  meshwright_status status{};
  status.struct_size = sizeof status;
  const std::string who = what + " " + raw.name + " of " + text_of(plugin);
  void* made = nullptr;
  try {
    detail::PluginCall call(plugin.code, "create");
    made = raw.create(&status);
  } catch (const std::exception& error) {
    throw Error(ErrorCode::plugin_create_threw,
                who + " threw " + detail::exception_type() + " while it was made: " + error.what());
  } catch (...) {
    throw Error(ErrorCode::plugin_create_threw,
                who + " threw something that is no exception, of type " + detail::exception_type() +
                    ", while it was made");
  }
  status.message[sizeof status.message - 1] = '\0';
  if (status.code != 0 || made == nullptr) {
    if (made != nullptr) raw.destroy(made);
    throw Error(ErrorCode::plugin_create_failed,
                who + " could not be made: " +
                    (status.message[0] != '\0' ? status.message : "no reason given"));
  }
  std::shared_ptr<Made> out(static_cast<Made*>(made),
                            [destroy = raw.destroy](Made* it) { destroy(it); });
  // Texts are of a kind of [dataset]: no plugin was asked for.
  if constexpr (std::is_same_v<Made, DatasetKind>)
    return guard(plugin, std::move(out), raw.name != std::string_view(config::kTextComponent));
  else
    return guard(plugin, std::move(out));
}

}  // namespace

struct Registry::Impl {
  std::vector<fs::path> files;
  std::vector<Place> places;
  std::deque<LoadedPlugin> loaded;  // stable addresses

  const LoadedPlugin* loaded_from(const fs::path& file) const {
    std::error_code failed;
    fs::path real = fs::canonical(file, failed);
    for (const LoadedPlugin& plugin : loaded)
      if (!failed && plugin.path == real) return &plugin;
    return nullptr;
  }

  const LoadedPlugin& load(const fs::path& file, const std::string& place) {
    if (const LoadedPlugin* known = loaded_from(file)) return *known;
    VerifiedLibrary verified = verify_library(file);
    verified.path = fs::canonical(file);
    boost::dll::shared_library library = open(verified.path);
    if (!library.has("meshwright_plugin_v1"))
      throw Error(ErrorCode::plugin_no_descriptor,
                  verified.path.string() + " does not export meshwright_plugin_v1")
          .help("end one source with MESHWRIGHT_PLUGIN(...)");
    LoadedPlugin plugin = read_descriptor(
        &library.get<const meshwright_plugin>("meshwright_plugin_v1"), verified, place);
    if (!plugin.runtime_half.empty()) verify_runtime_half(plugin.runtime_half, verified);
    for (const LoadedPlugin& other : loaded) {
      refuse_twins(plugin, plugin.strategies, other, other.strategies, kStrategies);
      refuse_twins(plugin, plugin.models, other, other.models, kModels);
      refuse_twins(plugin, plugin.datasets, other, other.datasets, kDatasets);
    }
    plugin.code = detail::plugin_code(text_of(plugin));
    detail::library_is_of(plugin.code, plugin.descriptor);
    loaded.push_back(std::move(plugin));
    return loaded.back();
  }

  std::map<const StrategyInfo*, std::shared_ptr<Strategy>> made;
  std::map<const ComponentInfo*, std::shared_ptr<ModelFamily>> models;
  std::map<const ComponentInfo*, std::shared_ptr<DatasetKind>> datasets;

  // True when the file says (or its name says) that it has this strategy, model or data set.
  static bool is_hit(const fs::path& file, const std::string& name, const Sort& sort) {
    if (file.filename() == "libmeshwright_" + name + ".so") return true;
    try {
      const VerifiedLibrary said = read_facts(file);
      for (const std::string& known : said.*sort.listed)
        if (text::normal(known) == name) return true;
    } catch (const Error& error) {  // a damaged neighbour is no hit; `plugins list` shows it
      if (const std::optional<Error> limit = detail::used_up(error)) throw *limit;
    }
    return false;
  }

  template <class Info>
  struct Hit {
    const LoadedPlugin* plugin;
    const Info* info;
  };
  // The first library that has it; throws Error(plugin_not_found), or what refuses a hit.
  template <class Info>
  Hit<Info> find(const std::string& wanted, const std::string& key, const Sort& sort,
                 std::vector<Info> LoadedPlugin::* of) {
    const std::string name = text::normal(wanted);
    auto from = [&](const LoadedPlugin& plugin) -> const Info* {
      for (const Info& info : plugin.*of)
        if (answers_to(info, name)) return &info;
      return nullptr;
    };
    for (const LoadedPlugin& plugin : loaded)
      if (const Info* found = from(plugin)) return {&plugin, found};
    for (const Place& place : places)
      for (const fs::path& file : candidates_in(place.folder))
        if (is_hit(file, name, sort)) {
          const LoadedPlugin& plugin = load(file, place.label);
          if (const Info* found = from(plugin)) return {&plugin, found};
        }
    throw not_found(wanted, key, sort, of);
  }

  // Says where we looked and what there is.
  template <class Info>
  Error not_found(const std::string& wanted, const std::string& key, const Sort& sort,
                  std::vector<Info> LoadedPlugin::* of) const {
    const std::string name = text::normal(wanted);
    std::vector<std::string> names;
    std::string text = std::string("no plugin has a ") + sort.what + " \"" + wanted + "\"";
    for (const fs::path& file : files) text += "\nsearched [plugins] load: " + file.string();
    for (const Place& place : places) {
      std::string here;
      for (const fs::path& file : candidates_in(place.folder)) try {
          const VerifiedLibrary said = read_facts(file);
          for (const std::string& s : said.*sort.listed) {
            if (std::find(names.begin(), names.end(), s) == names.end()) names.push_back(s);
            here += (here.empty() ? "" : ", ") + s;
          }
        } catch (const Error&) {
          here += (here.empty() ? "" : ", ") + file.filename().string() + " (unusable)";
        }
      std::error_code failed;
      if (here.empty())
        here = !fs::is_directory(place.folder, failed) ? "no such folder"
               : &sort == &kStrategies                 ? "no plugins"
                                                       : std::string("no ") + sort.many;
      text += "\nsearched " + place.label + ": " + place.folder.string() + " (" + here + ")";
    }
    for (const std::string& folder : relative_plugin_folders())
      text += "\nleft out MESHWRIGHT_PLUGIN_PATH: " + folder + " (not an absolute path)";
    for (const LoadedPlugin& plugin : loaded)
      for (const Info& info : plugin.*of)
        if (std::find(names.begin(), names.end(), info.name) == names.end())
          names.push_back(info.name);
    std::sort(names.begin(), names.end());
    Error error(ErrorCode::plugin_not_found, text);
    error.key(key);
    if (std::string near = nearest_name(name, names); !near.empty())
      error.help("set " + key + " = \"" + near + "\"");
    if (!names.empty())
      error.help(std::string(sort.many) + " that were found: " + text::join(names, ", "));
    else if (&sort == &kStrategies)
      error.help("install the bundled plugins");
    return error.help(
        "a plugin of your own: plugins.load = [\"/path/to/libmeshwright_mine.so\"] in the file, or "
        "its folder in MESHWRIGHT_PLUGIN_PATH");
  }
};

std::string text_of(const LoadedPlugin& plugin) {
  return plugin.name + " " + plugin.version + " (" + plugin.path.string() + ")";
}

std::vector<std::string> relative_plugin_folders() {
  std::vector<std::string> out = text::split_names(std::getenv("MESHWRIGHT_PLUGIN_PATH"), ':');
  std::erase_if(out, [](const std::string& folder) { return fs::path(folder).is_absolute(); });
  return out;
}

Registry::Registry(const SearchPath& search) : impl_(std::make_unique<Impl>()) {
  impl_->places = places_of(search);
  for (const fs::path& file : search.files) impl_->files.push_back(absolute_unless_empty(file));
}
Registry::~Registry() = default;

LoadedStrategy Registry::find(const std::string& strategy) {
  for (const fs::path& file : impl_->files) load_named(file);
  const auto hit =
      impl_->find(strategy, "distributed.strategy", kStrategies, &LoadedPlugin::strategies);
  return create(*hit.plugin, *hit.info);
}

LoadedModel Registry::find_model(const std::string& name, const std::string& key) {
  for (const fs::path& file : impl_->files) load_named(file);
  const auto hit = impl_->find(name, key, kModels, &LoadedPlugin::models);
  return create_model(*hit.plugin, *hit.info);
}

LoadedDataset Registry::find_dataset(const std::string& name, const std::string& key) {
  for (const fs::path& file : impl_->files) load_named(file);
  const auto hit = impl_->find(name, key, kDatasets, &LoadedPlugin::datasets);
  return create_dataset(*hit.plugin, *hit.info);
}

const LoadedPlugin& Registry::load_named(const fs::path& file) {
  const LoadedPlugin& plugin = impl_->load(file, "[plugins] load");
  for (const StrategyInfo& info : plugin.strategies) create(plugin, info);
  return plugin;
}

const LoadedPlugin& Registry::load(const fs::path& file, const std::string& place) {
  return impl_->load(file, place);
}

LoadedStrategy Registry::create(const LoadedPlugin& plugin, const StrategyInfo& info) {
  std::shared_ptr<Strategy>& known = impl_->made[&info];
  if (known == nullptr) {
    std::shared_ptr<Strategy> made = make<Strategy>(plugin, *info.strategy, "strategy");
    tp::register_plans(*info.strategy);
    known = std::move(made);  // one whose plans are refused is refused each time
  }
  return {&plugin, &info, known};
}

LoadedModel Registry::create_model(const LoadedPlugin& plugin, const ComponentInfo& info) {
  std::shared_ptr<ModelFamily>& known = impl_->models[&info];
  if (known == nullptr) known = make<ModelFamily>(plugin, *info.component, "model");
  return {&plugin, &info, known};
}

LoadedDataset Registry::create_dataset(const LoadedPlugin& plugin, const ComponentInfo& info) {
  std::shared_ptr<DatasetKind>& known = impl_->datasets[&info];
  if (known == nullptr) known = make<DatasetKind>(plugin, *info.component, "data set");
  return {&plugin, &info, known};
}

std::vector<fs::path> Registry::hidden_by(const LoadedStrategy& found) const {
  std::vector<fs::path> out;
  std::error_code failed;
  for (const Place& place : impl_->places)
    for (const fs::path& file : candidates_in(place.folder)) {
      const fs::path real = fs::canonical(file, failed);
      if (failed || real == found.plugin->path ||
          std::find(out.begin(), out.end(), real) != out.end())
        continue;
      if (Impl::is_hit(file, found.info->name, kStrategies)) out.push_back(real);
    }
  return out;
}

std::vector<Listing> Registry::list() {
  std::vector<Listing> out;
  auto add = [&](const fs::path& file, const std::string& place) {
    Listing listing{file, place, nullptr, std::nullopt};
    try {
      listing.plugin = &impl_->load(file, place);
    } catch (const Error& error) {
      listing.refused = error;
    }
    out.push_back(std::move(listing));
  };
  for (const fs::path& file : impl_->files) add(file, "[plugins] load");
  for (const Place& place : impl_->places)
    for (const fs::path& file : candidates_in(place.folder)) add(file, place.label);
  return out;
}

std::vector<std::pair<std::string, fs::path>> Registry::places() const {
  std::vector<std::pair<std::string, fs::path>> out;
  for (const fs::path& file : impl_->files) out.emplace_back("[plugins] load", file);
  for (const Place& place : impl_->places) out.emplace_back(place.label, place.folder);
  return out;
}

}  // namespace meshwright::loader
