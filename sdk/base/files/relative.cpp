#include "sdk/base/files/relative.h"

#include <glob.h>

#include <filesystem>
#include <system_error>

#include "meshwright/options.h"

namespace meshwright::base {

namespace fs = std::filesystem;

namespace {

bool leads_somewhere(const fs::path& path) {
  std::error_code failed;
  if (fs::exists(path, failed)) return true;
  glob_t found{};
  bool matches = ::glob(path.c_str(), GLOB_NOSORT, nullptr, &found) == 0 && found.gl_pathc > 0;
  ::globfree(&found);
  return matches;
}

}  // namespace

std::vector<std::string> relative_path_help(const std::string& key, const std::string& path,
                                            const std::string& toml) {
  std::error_code failed;
  fs::path here = fs::current_path(failed);
  if (failed || path.empty() || fs::path(path).is_absolute()) return {};
  std::vector<std::string> out;
  fs::path folder = fs::path(toml).parent_path(), beside = (folder / path).lexically_normal();
  if (!toml.empty() &&
      fs::absolute(beside, failed).lexically_normal() != (here / path).lexically_normal() &&
      leads_somewhere(beside)) {
    out.push_back("it lies beside the configuration: set " + key + " = " +
                  to_toml(OptionValue(beside.string())));
    out.push_back("or start from that folder: cd " + folder.string());
  }
  out.push_back("tried " + (here / path).lexically_normal().string() +
                ": relative paths start at the current folder, " + here.string());
  return out;
}

}  // namespace meshwright::base
