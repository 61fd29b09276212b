// Files that whoever started this process has read for it. What a run is made of is read once: a
// later attempt gets what the first one got, whatever has become of the file.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace meshwright::base {

// By the name under which they are asked for. For a process that runs one job, at its start.
void hand_files(std::map<std::string, std::string> files);
// nullptr: it was not handed.
const std::string* handed_file(const std::filesystem::path& file);

}  // namespace meshwright::base
