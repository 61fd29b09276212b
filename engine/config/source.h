// What a Source holds, for the files of this room.
#pragma once

#include "engine/config/config.h"
#include "engine/config/toml_value.h"

namespace meshwright::config {

// Where plugins other than strategies have their options, each in a table of its name.
inline constexpr const char* kComponentTables[] = {"model", "dataset", "validation_dataset"};

struct Source::Impl {
  std::filesystem::path file;
  Value root;

  // The place as an Origin: what came from the command line has no file and line.
  Origin origin(const Place& place) const;
};

}  // namespace meshwright::config
