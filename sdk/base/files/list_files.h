// Relative paths of a configuration start at the current folder, wherever the configuration itself
// lies.
#pragma once

#include <string>
#include <vector>

namespace meshwright::base {

// Advice for `path`, the value of `key`, which leads nowhere. Names the place that was tried and
// the current folder. `toml` is the file in which the value was written (empty: somewhere else):
// when the path would have led somewhere from that file's folder, that is said first, with a
// setting that works from here. Empty for an absolute path. `path` may be a pattern such as
// data/*.txt.
std::vector<std::string> relative_path_help(const std::string& key, const std::string& path,
                                            const std::string& toml);

// The files that a path of a configuration names.

// One file, a folder with all regular files below it, or a pattern; sorted by name, and but for one
// that is named itself none of them empty. Throws Error(bad_dataset) with `key` when nothing is
// found, with the help of relative_path_help() (`toml` as there), and when a folder on the way
// cannot be read.
std::vector<std::string> list_files(const std::string& path, const std::string& key,
                                    const std::string& toml);

}  // namespace meshwright::base
