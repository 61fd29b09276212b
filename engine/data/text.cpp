#include <glob.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/base/relative.h"
#include "engine/data/token_files.h"

namespace meshwright::data {

namespace fs = std::filesystem;

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
std::vector<std::string> list_files(const DatasetConfig& config) {
  auto fail = [&](const std::string& what) {
    return Error(ErrorCode::bad_dataset, what).key(config.table + ".path");
  };
  if (config.path.find('\0') != std::string::npos) throw fail(config.table + ".path holds a NUL");
  std::vector<std::string> out;
  std::error_code failed;
  fs::file_status status = fs::status(config.path, failed);
  if (fs::is_directory(status)) {
    fs::recursive_directory_iterator it(config.path, failed), end;
    std::string place = config.path;
    while (!failed && it != end) {
      place = it->path().string();
      if (has_contents(it->path())) out.push_back(place);
      it.increment(failed);
    }
    if (failed)
      throw fail(place + ": cannot be read: " + failed.message())
          .help("make the folder readable, or name the files by a pattern");
  } else if (fs::exists(status)) {
    return {config.path};
  } else {
    glob_t found{};
    unreadable = {};
    auto on_error = [](const char* path, int reason) {
      unreadable = {path, reason};
      return reason == EACCES || reason == EIO ? 1 : 0;
    };
    int result = ::glob(config.path.c_str(), GLOB_NOSORT, on_error, &found);
    if (result == 0)
      for (size_t i = 0; i < found.gl_pathc; ++i)
        if (has_contents(found.gl_pathv[i])) out.emplace_back(found.gl_pathv[i]);
    ::globfree(&found);
    if (result == GLOB_ABORTED)
      throw fail(unreadable.first + ": cannot be read: " + std::strerror(unreadable.second));
    if (result == GLOB_NOSPACE)
      throw fail(config.table + ".path = \"" + config.path +
                 "\" matches more files than memory holds");
  }
  if (out.empty()) {
    Error error =
        fail(config.table + ".path = \"" + config.path + "\": no file with contents matches");
    for (const std::string& help :
         base::relative_path_help(config.table + ".path", config.path, config.toml))
      error.help(help);
    throw error;
  }
  std::sort(out.begin(), out.end());  // not as the locale would
  return out;
}

std::unique_ptr<Dataset> open_text(const DatasetConfig& config) {
  auto out = std::make_unique<TokenFiles>(config, TokenType::uint8);
  for (const std::string& path : list_files(config)) {
    base::MappedFile file(path, ErrorCode::bad_dataset);
    refuse_numpy(file, config);
    int64_t size = file.size();
    out->add(std::move(file), 0, size);
  }
  return out;
}

}  // namespace meshwright::data
