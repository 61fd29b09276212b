// Configurations of torchtitan (TOML), Automodel, axolotl and TRL (YAML) as far as they have
// counterparts here.
#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/config.h"

namespace meshwright::config {

struct Migration {
  struct Line {
    std::string
        key;       // where it comes from: "training.steps", or ours for what nothing was said about
    int line = 0;  // in the file; 0: nothing stands there
    std::string value;  // as it was written there
    std::string
        text;  // ours ("step_scheduler.max_steps = 100"), or why it could not be carried over
  };
  std::string program;        // "torchtitan", "Automodel", ...
  std::string known_by;       // the key or table that tells it: "base_model"
  std::string toml;           // a configuration of ours, checked
  std::vector<Line> carried;  // said there, and the same here
  std::vector<Line>
      guessed;  // chosen: the two do not mean quite the same, or the other program's default
  std::vector<Line> left;     // not carried over
  std::vector<Line> missing;  // what train still wants
};

// What is in `text` says whose it is; `file` is its name in messages. Throws
// Error(bad_foreign_config) with the place for what cannot be read.
Migration migrate(std::string_view text, const std::string& file, const PluginSchemas& plugins);
boost::json::object migration_json(const Migration& migration);

}  // namespace meshwright::config
