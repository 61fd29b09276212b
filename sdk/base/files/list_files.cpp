#include "sdk/base/files/list_files.h"

#include <glob.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "meshwright/error.h"
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

namespace {

// What glob() could not read: folder and errno. Its callback takes no argument of the caller's.
thread_local std::pair<std::string, int> unreadable;

bool has_contents(const fs::path& path) {
  std::error_code failed;
  return fs::is_regular_file(path, failed) && fs::file_size(path, failed) > 0 && !failed;
}

}  // namespace

// Data that is silently left out is worse than a run that does not start, so an unreadable folder
// is an error.
std::vector<std::string> list_files(const std::string& name, const std::string& key,
                                    const std::string& toml) {
  auto fail = [&](const std::string& what) { return Error(ErrorCode::bad_dataset, what).key(key); };
  if (name.find('\0') != std::string::npos) throw fail(key + " holds a NUL");
  std::vector<std::string> out;
  std::error_code failed;
  fs::file_status status = fs::status(name, failed);
  if (fs::is_directory(status)) {
    fs::recursive_directory_iterator it(name, failed), end;
    std::string place = name;
    while (!failed && it != end) {
      place = it->path().string();
      if (has_contents(it->path())) out.push_back(place);
      it.increment(failed);
    }
    if (failed)
      throw fail(place + ": cannot be read: " + failed.message())
          .help("make the folder readable, or name the files by a pattern");
  } else if (fs::exists(status)) {
    return {name};
  } else if (name.find("**") != std::string::npos) {
    // glob() takes it for one *, and files of other depths would be left out without a word.
    const std::string above = name.substr(0, name.find("**"));
    const std::string below = name.substr(std::min(name.find_last_of('/') + 1, name.size()));
    throw fail(key + " = \"" + name + "\": ** is not read; a * stays within one folder")
        .help("name the folder for all files below it: set " + key + " = \"" +
              (above.empty() ? "." : above.substr(0, above.find_last_not_of('/') + 1)) + "\"")
        .help("or one * for each folder between: " + key + " = \"" + above + "*/" +
              (below.find("**") == std::string::npos ? below : "*") + "\"");
  } else {
    glob_t found{};
    unreadable = {};
    auto on_error = [](const char* path, int reason) {
      unreadable = {path, reason};
      return reason == EACCES || reason == EIO ? 1 : 0;
    };
    int result = ::glob(name.c_str(), GLOB_NOSORT, on_error, &found);
    if (result == 0)
      for (size_t i = 0; i < found.gl_pathc; ++i)
        if (has_contents(found.gl_pathv[i])) out.emplace_back(found.gl_pathv[i]);
    ::globfree(&found);
    if (result == GLOB_ABORTED)
      throw fail(unreadable.first + ": cannot be read: " + std::strerror(unreadable.second));
    if (result == GLOB_NOSPACE)
      throw fail(key + " = \"" + name + "\" matches more files than memory holds");
  }
  if (out.empty()) {
    Error error = fail(key + " = \"" + name + "\": no file with contents matches");
    for (const std::string& help : relative_path_help(key, name, toml)) error.help(help);
    throw error;
  }
  std::sort(out.begin(), out.end());  // not as the locale would
  return out;
}

}  // namespace meshwright::base
