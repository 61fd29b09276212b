// Configurations as tests read them: the result, with all that was said of it.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/config/config.h"

namespace meshwright::config::testing {

struct Loaded {
  Config config;
  Diagnostics diagnostics;
};

struct Around {
  PluginSchemas plugins = {};
  std::string active = "fsdp2";
  std::map<std::string, std::string> environment = {};
};

inline Loaded load(const std::string& text, std::vector<std::string> sets = {},
                   const Around& around = {}) {
  Loaded out;
  const LoadOptions options{
      .file = "job.toml", .sets = std::move(sets), .environment = [&](const std::string& name) {
        auto it = around.environment.find(name);
        return it == around.environment.end() ? std::nullopt : std::optional(it->second);
      }};
  const Source source = Source::parse(text, options, out.diagnostics);
  out.config = resolve(source, around.plugins, around.active, out.diagnostics);
  return out;
}

inline bool says(const std::vector<std::string>& lines, const std::string& part) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

inline Error only_error(const Loaded& loaded) {
  REQUIRE(loaded.diagnostics.errors().size() == 1);
  return loaded.diagnostics.errors().front();
}

}  // namespace meshwright::config::testing
