#include "engine/job/foreign_plugins.h"

#include <algorithm>
#include <system_error>

#include "engine/config/config.h"
#include "engine/plugins/registry.h"
#include "meshwright/error.h"

namespace meshwright::plan {
namespace {

namespace fs = std::filesystem;

fs::path absolute_of(const fs::path& path) {
  std::error_code failed;
  return fs::absolute(path, failed).lexically_normal();
}

bool lies_in(const fs::path& path, const fs::path& folder) {
  const fs::path way = path.lexically_relative(folder);
  return !way.empty() && *way.begin() != "..";
}

// As it is written, or where links lead.
bool comes_with(const fs::path& path, const fs::path& folder) {
  std::error_code failed, ignored;
  const fs::path home = absolute_of(folder), real_home = fs::weakly_canonical(home, failed),
                 real = fs::weakly_canonical(path, ignored);
  return lies_in(path, home) || lies_in(path, real_home) || lies_in(real, real_home) ||
         lies_in(real, home);
}

// A folder of plugins may hold a link to one that comes with the folder.
bool brings_one(const fs::path& place, const fs::path& folder) {
  std::error_code failed;
  for (fs::directory_iterator at(place, failed), end; !failed && at != end; at.increment(failed))
    if (at->path().extension() == ".so" && comes_with(at->path(), folder)) return true;
  return false;
}

bool is_standard(const fs::path& path) {
  static const std::vector<std::pair<std::string, fs::path>> places = loader::Registry({}).places();
  return std::any_of(places.begin(), places.end(), [&](const auto& place) {
    return path == place.second || path.parent_path() == place.second;
  });
}

}  // namespace

ForeignPlugins foreign_plugins(const config::Source& source, const fs::path& folder, bool trusted,
                               const std::function<void(const std::string&)>& tell) {
  const std::string said_by = (folder / config::kResolvedFile).string();
  const std::vector<std::string> relative = source.relative_plugins();
  if (!trusted && !relative.empty())
    throw Error(ErrorCode::plugin_owner, said_by + " names the plugin " + relative.front() +
                                             " by a relative path: such a folder is data, and "
                                             "nothing that comes with it is run")
        .key("plugins")
        .help("--trust-plugins loads it, where the folder is your own")
        .help(
            "copy it to a folder of MESHWRIGHT_PLUGIN_PATH, and add --set 'plugins.load=[]' "
            "--set 'plugins.path=[]'");
  auto check = [&](const fs::path& path, const char* key, bool inside) {
    if (!trusted && inside)
      throw Error(ErrorCode::plugin_owner,
                  said_by + " names " + path.string() + " in " + key +
                      ", which comes with the folder: such a folder is data, and nothing that "
                      "comes with it is run")
          .key(key)
          .help("--trust-plugins loads it, where the folder is your own")
          .help("move it to a place of yours, and add --set '" + std::string(key) + "=[\"" +
                (std::string(key) == "plugins.load" ? "/path/to/" + path.filename().string()
                                                    : "/path/to/plugins") +
                "\"]'");
    if (!is_standard(path))
      tell(said_by + " names " + path.string() + " in " + key +
           ": what is there is loaded, and runs as you");
  };
  ForeignPlugins out{source.plugin_files(), source.plugin_folders(), source.plugin_file_origins()};
  for (const fs::path& file : out.files) check(file, "plugins.load", comes_with(file, folder));
  for (const fs::path& place : out.folders)
    check(place, "plugins.path", comes_with(place, folder) || brings_one(place, folder));
  return out;
}

}  // namespace meshwright::plan
