#include "engine/config/unknown_key.h"

#include <algorithm>
#include <optional>

#include "engine/config/cross_checks.h"
#include "engine/config/foreign.h"

namespace meshwright::config {
namespace {

// Says what the names of another program are here: of the key itself, or of the keys of a table.
// Returns how many it knew.
int tell_foreign(Error& error, const std::string& key, const Entry& entry) {
  constexpr int kMostLines = 8;
  int told = 0;
  if (const ForeignName* known = find_foreign(key)) {
    error.help(foreign_text(*known, key));
    return 1;
  }
  for (const Entry& inner : entry.value.entries) {
    std::string name = join_key(key, inner.key);
    const ForeignName* known = find_foreign(name);
    if (known != nullptr && ++told <= kMostLines) error.help(foreign_text(*known, name));
  }
  return told;
}

// The one other table that has a key of this name. Of the same options under several strategies
// the active one counts, and validation data is set up like the data. A name that several tables
// know, like "name", says nothing about where it was meant to stand.
std::string home_of(const KnownKeys& known, const std::string& name, const std::string& not_this) {
  std::vector<std::string> homes;
  for (const auto& [table, options] : known.tables) {
    const std::string& here = table;
    bool inactive = ((known.active == nullptr || table != known.active->schema.table) &&
                     std::any_of(known.plugins.strategies.begin(), known.plugins.strategies.end(),
                                 [&](const auto& s) { return s.schema.table == here; })) ||
                    std::any_of(known.plugins.components.begin(), known.plugins.components.end(),
                                [&](const auto& c) { return c.schema.table == here && !c.active; });
    if (table != not_this && !table.empty() && !inactive && options.schema().find(name) != nullptr)
      homes.push_back(table);
  }
  auto has = [&](const char* table) {
    return std::find(homes.begin(), homes.end(), table) != homes.end();
  };
  if (has("dataset")) std::erase(homes, "validation_dataset");
  if (has("distributed.mp_policy")) std::erase(homes, "distributed.moe.mp_policy");
  return homes.size() == 1 ? homes[0] : std::string();
}

// Of the keys and tables that may stand there.
std::vector<std::string> names_in(const KnownKeys& known, const std::string& table) {
  std::vector<std::string> names;
  if (auto here = known.tables.find(table); here != known.tables.end())
    for (const meshwright_option* option : here->second.schema().options)
      names.emplace_back(option->name);
  const std::string prefix = table.empty() ? "" : table + ".";
  for (const auto& [name, options] : known.tables)
    if (name.starts_with(prefix) && name.size() > prefix.size() &&
        name.find('.', prefix.size()) == std::string::npos)
      names.push_back(name.substr(prefix.size()));
  for (const OptionSchema& list : list_schemas())
    if (list.table.starts_with(prefix) && list.table.find('.', prefix.size()) == std::string::npos)
      names.push_back(list.table.substr(prefix.size()));
  return names;
}

}  // namespace

bool is_list(const std::string& table) {
  const std::vector<OptionSchema> lists = list_schemas();
  return std::any_of(lists.begin(), lists.end(),
                     [&](const OptionSchema& list) { return list.table == table; });
}

bool is_foreign(const std::string& key, const Entry& entry) {
  Error unused(ErrorCode::unknown_key, "");
  return tell_foreign(unused, key, entry) > 0;
}

Error unknown_key(const KnownKeys& known, const std::string& table, const std::string& key,
                  const Entry& entry, const Origin& origin) {
  const bool from_set = entry.place.source == Origin::Source::command_line;
  if (std::optional<Error> later = later_key(key, from_set)) return later->at(origin);
  Error error(ErrorCode::unknown_key,
              (entry.value.is_table() ? "unknown table [" + key + "]" : "unknown key " + key));
  error.key(key).at(origin);
  if (tell_foreign(error, key, entry) > 0) return error;  // the key here is the whole answer
  const std::string near = nearest_name(entry.key, names_in(known, table)),
                    home = home_of(known, entry.key, table);
  if (!home.empty() && (near.empty() || near != entry.key))
    error.help(entry.key + " belongs to [" + home + "]: move it there");
  // What was meant is in doubt as much as what was written.
  if (!near.empty()) {
    const std::string meant = join_key(table, near);
    error.about(meant).help("did you mean " + (is_list(meant) ? "[[" + meant + "]]" : meant) + "?");
  }
  if (!home.empty() || !near.empty()) return error;
  if (const ForeignName* foreign = find_foreign_elsewhere(entry.key))
    return error.help(foreign_text(*foreign, entry.key));
  const bool of_component =
      std::any_of(known.plugins.components.begin(), known.plugins.components.end(),
                  [&](const auto& c) { return c.schema.table == table; });
  return error.help((from_set ? "remove --set " + key : std::string("remove the line")) +
                    "; `meshwright config explain" + (table.empty() ? "" : " " + table) +
                    (of_component ? " --file JOB" : "") + "` lists the keys");
}

}  // namespace meshwright::config
