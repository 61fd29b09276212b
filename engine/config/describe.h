// The configuration explained: resolved values with their places, one key or error code, the JSON
// Schema, the reference page. All of it comes from the option schemas.
#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <vector>

#include "engine/config/config.h"

namespace meshwright::config {

// Every table as TOML with a comment where each value came from. Reads back to the same values.
// `without`: tables to leave out.
std::string show_toml(const Config& config, bool with_origins = true,
                      const std::vector<std::string>& without = {});
boost::json::object show_json(const Config& config);
// The value of "optimizer.lr" as there; "none" in quotes: it is not set. Throws Error(unknown_key)
// with the nearest name.
std::string value_toml(const Config& config, const std::string& key);

// JSON Schema (draft 2020-12) of a configuration file, for editors.
boost::json::object json_schema(const PluginSchemas& plugins);

// A key ("optimizer.lr"), a table ("optimizer"), an error code ("E0203"), or "" for the list of
// tables. Throws Error(usage) for anything else, with the nearest name.
std::string explain(const std::string& what, const PluginSchemas& plugins);
boost::json::object explain_json(const std::string& what, const PluginSchemas& plugins);

// One key that a search found.
struct Match {
  std::string key;
  std::string via;    // where the word was: "name", "other name", "choices", "text"
  std::string owner;  // the engine, or strategies
  const meshwright_option* option = nullptr;
};
struct Matches {
  std::string told;  // "learning_rate is optimizer.lr here"; empty when no other program is known
                     // to call anything so
  std::vector<Match> keys;  // the nearest first
  bool empty() const { return told.empty() && keys.empty(); }
};
// Every key that has to do with the words of `what`. What the options point to belongs to the
// schemas, which strategies own.
Matches search_options(const std::string& what, const PluginSchemas& plugins);
boost::json::object search_json(const std::string& what, const Matches& matches);
// Whether explain() has an answer: `what` is a key, a table, an error code, a name that only one
// table has, or empty.
bool is_explained(const std::string& what, const PluginSchemas& plugins);

// "[optimizer]", "[[optimizer.group]]": the line of a file above the table's keys.
std::string header_of(const std::string& table);

// The engine's tables and lists, and the tables of plugins; a table that several strategies share
// stands there once, with all of them as owners.
std::vector<OptionSchema> all_schemas(const PluginSchemas& plugins);
// "optimizer.lr"; of an option that stands in no table its name alone.
std::string key_of(const OptionSchema& schema, const meshwright_option& option);
// The default as a file would say it; "not set".
std::string default_text(const meshwright_option& option);

// docs/reference.md: every table and key, every error code.
std::string reference_markdown(const PluginSchemas& plugins);

}  // namespace meshwright::config
