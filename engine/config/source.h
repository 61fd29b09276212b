// What a Source holds, for the files of this folder.
#pragma once

#include "engine/config/config.h"
#include "engine/config/toml_value.h"

namespace meshwright::config {

// Where plugins other than strategies have their options, each in a table of its name.
inline constexpr const char* kComponentTables[] = {"model", "dataset", "validation_dataset"};

// The file as it is; nullopt and an error when it cannot be read.
std::optional<std::string> read_configuration(const std::filesystem::path& file,
                                              Diagnostics& diagnostics);
std::optional<std::string> process_environment(const std::string& name);

struct Source::Impl {
  std::filesystem::path file;
  Value root;

  // The place as an Origin: what came from the command line has no file and line.
  Origin origin(const Place& place) const;
};

}  // namespace meshwright::config
