// Files that whoever started this process has read for it. What a run is made of is read once: a
// later attempt gets what the first one got, whatever has become of the file. In the SDK's library,
// so that plugins get the same.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "meshwright/export.h"

namespace meshwright::base {

// By the name under which they are asked for. For a process that runs one job, at its start.
MESHWRIGHT_API void hand_files(std::map<std::string, std::string> files);
// nullptr: it was not handed.
MESHWRIGHT_API const std::string* handed_file(const std::filesystem::path& file);
// The same of a config.json, or of that in a folder, which may be gone meanwhile.
inline const std::string* handed_config(const std::filesystem::path& file_or_folder) {
  const std::string* within = handed_file(file_or_folder / "config.json");
  return within != nullptr ? within : handed_file(file_or_folder);
}

}  // namespace meshwright::base
