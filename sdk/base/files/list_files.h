// The files that a path of a configuration names.
#pragma once

#include <string>
#include <vector>

namespace meshwright::base {

// One file, a folder with all regular files below it, or a pattern; sorted by name, and but for one
// that is named itself none of them empty. Throws Error(bad_dataset) with `key` when nothing is
// found, with the help of relative_path_help() (`toml` as there), and when a folder on the way
// cannot be read.
std::vector<std::string> list_files(const std::string& path, const std::string& key,
                                    const std::string& toml);

}  // namespace meshwright::base
