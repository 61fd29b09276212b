// The configuration explained: resolved values with their places, one key or error code, the JSON Schema, the reference page.
// All of it comes from the option schemas.
#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <vector>

#include "engine/config/config.h"

namespace meshwright::config {

// Every table as TOML with a comment where each value came from. Reads back to the same values. `without`: tables to leave out.
std::string show_toml(const Config& config, bool with_origins = true, const std::vector<std::string>& without = {});
boost::json::object show_json(const Config& config);

// JSON Schema (draft 2020-12) of a configuration file, for editors.
boost::json::object json_schema(const std::vector<StrategySchema>& strategies);

// A key ("optimizer.lr"), a table ("optimizer"), an error code ("E0203"), or "" for the list of tables. Throws Error(usage) for
// anything else, with the nearest name.
std::string explain(const std::string& what, const std::vector<StrategySchema>& strategies);
boost::json::object explain_json(const std::string& what, const std::vector<StrategySchema>& strategies);

// docs/reference.md: every table and key, every error code.
std::string reference_markdown(const std::vector<StrategySchema>& strategies);

}  // namespace meshwright::config
