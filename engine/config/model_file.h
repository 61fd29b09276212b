// The config.json of a model that is named by that file or by the folder that it lies in.
#pragma once

#include <filesystem>
#include <system_error>

namespace meshwright::base {

inline std::filesystem::path model_file(const std::filesystem::path& config_or_folder) {
  std::error_code failed;
  return std::filesystem::is_directory(config_or_folder, failed) ? config_or_folder / "config.json"
                                                                 : config_or_folder;
}

}  // namespace meshwright::base
