// What a Source holds, for the files of this room.
#pragma once

#include "engine/config/config.h"
#include "engine/config/toml_value.h"

namespace meshwright::config {

struct Source::Impl {
  std::filesystem::path file;
  Value root;

  // The place as an Origin: what came from the command line has no file and line.
  Origin origin(const Place& place) const;
};

}  // namespace meshwright::config
