// The second pass: every value against its schema, older forms moved to where they belong, all
// problems collected. What keys want of each other is in cross_checks.cpp.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/config.h"
#include "engine/config/cross_checks.h"
#include "engine/config/foreign.h"
#include "engine/config/source.h"
#include "engine/config/sources.h"
#include "engine/config/toml_value.h"
#include "sdk/base/words.h"

namespace meshwright::config {

namespace {

constexpr std::string_view kDroppedKeys[] = {"_target_", "_recursive_", "_convert_"};

// "old{x=1,y=2,z=}": another name, and what its values mean today; z sets nothing.
struct Alias {
  std::string name;
  std::vector<std::pair<std::string, std::string>> values;
};

std::vector<Alias> aliases_of(const meshwright_option& option) {
  std::vector<Alias> out;
  for (const std::string& text : text::split_names(option.aliases, '|')) {
    Alias alias;
    size_t brace = text.find('{');
    alias.name = text.substr(0, brace);
    if (brace != std::string::npos)
      for (const std::string& pair :
           text::split(text.substr(brace + 1, text.find('}') - brace - 1), ','))
        if (size_t equals = pair.find('='); equals != std::string::npos)
          alias.values.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
    out.push_back(std::move(alias));
  }
  return out;
}

struct KnownKeys {
  const std::map<std::string, Options>& tables;
  const PluginSchemas& plugins;
  const StrategySchema* active;  // the strategy that will run; nullptr: not found
};

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

// Whether another program's files have a key or table of this name, or keys in it.
bool is_foreign(const std::string& key, const Entry& entry) {
  Error unused(ErrorCode::unknown_key, "");
  return tell_foreign(unused, key, entry) > 0;
}

// The error for `key` = `table`.entry.key: not there yet, or what a name of another program is
// here, the table it belongs to, the nearest name.
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
  const bool of_component = std::any_of(
      known.plugins.components.begin(), known.plugins.components.end(), [&](const auto& c) {
        return c.schema.table == table || c.schema.table == table_of_all(table);
      });
  return error.help((from_set ? "remove --set " + key : std::string("remove the line")) +
                    "; `meshwright config explain" + (table.empty() ? "" : " " + table) +
                    (of_component ? " --file JOB" : "") + "` lists the keys");
}

class Resolver {
 public:
  Resolver(const Source::Impl& source, const PluginSchemas& plugins, const std::string& active,
           Diagnostics& diagnostics)
      : source_(source),
        plugins_(plugins),
        strategies_(plugins.strategies),
        active_(active),
        diagnostics_(diagnostics) {}

  Config run(const std::string& strategy) {
    config_.file = source_.file;
    config_.requested_strategy = strategy;
    for (const OptionSchema& schema : engine_schemas()) add(schema);
    for (const OptionSchema& schema : list_schemas()) config_.lists[schema.table];
    for (const StrategySchema& s : strategies_)
      if (!config_.tables.contains(s.schema.table)) add(s.schema);
    for (const PluginSchemas::Component& one : plugins_.components) add(one.schema);
    read_table("", source_.root);
    fill_own_tables();
    check_between_keys(config_, source_, plugins_, diagnostics_);
    return std::move(config_);
  }

 private:
  void add(const OptionSchema& schema) { config_.tables.emplace(schema.table, Options(schema)); }
  Options* find_table(const std::string& name) {
    auto it = config_.tables.find(name);
    return it == config_.tables.end() ? nullptr : &it->second;
  }
  static std::string full_key(const std::string& table, const std::string& name) {
    return table.empty() ? name : join_key(table, name);
  }

  void refuse(ErrorCode code, const std::string& message, const std::string& key,
              const Place& place, const std::vector<std::string>& helps) {
    Error error(code, message);
    error.key(key).at(source_.origin(place));
    for (const std::string& help : helps) error.help(help);
    diagnostics_.add(std::move(error));
  }

  const StrategySchema* active_schema() const {
    for (const StrategySchema& s : strategies_)
      if (s.strategy == active_) return &s;
    return nullptr;
  }

  void read_table(const std::string& name, const Value& table) {
    for (const Entry& entry : table.entries) {
      std::string key = full_key(name, entry.key);
      Options* here = find_table(name);
      const meshwright_option* option = here == nullptr ? nullptr : here->schema().find(entry.key);
      if (entry.value.is_table() && find_table(key) != nullptr) {
        read_table(key, entry.value);
      } else if (option != nullptr) {
        set(*here, *option, entry, entry.key);
      } else if (config_.lists.contains(key)) {
        read_list(key, entry.value);
      } else if (find_table(key) != nullptr) {
        refuse(ErrorCode::wrong_type, key + " is a table, found " + found_text(entry.value), key,
               entry.value.place,
               {"write [" + key + "] on a line of its own, with its keys below"});
      } else if (std::ranges::find(kDroppedKeys, entry.key) != std::end(kDroppedKeys) &&
                 name.starts_with("distributed")) {
        diagnostics_.notice(key + " has no meaning here and is left out");
      } else if (!read_elsewhere(name, entry) && !nested_names(name, entry)) {
        unknown(name, key, entry);
      }
    }
  }

  // An array of tables; --set has it as a list of inline tables.
  void read_list(const std::string& key, const Value& list) {
    const std::string help =
        "write [[" + key + "]] on a line of its own, with its keys below, once for each";
    auto wrong = [&](const std::string& what, const Value& found) {
      refuse(ErrorCode::wrong_type, key + " " + what + ", found " + found_text(found), key,
             found.place, {help});
    };
    if (list.kind != Value::Kind::list) return wrong("is a list of tables", list);
    for (const Value& item : list.items) {
      if (item.is_table())
        read_list_table(key, item);
      else
        wrong("is a list of tables, and each of its items one", item);
    }
  }

  void read_list_table(const std::string& key, const Value& item) {
    for (const OptionSchema& schema : list_schemas()) {
      if (schema.table != key) continue;
      Options options(schema);
      for (const Entry& entry : item.entries) {
        if (const meshwright_option* option = schema.find(entry.key))
          set(options, *option, entry, entry.key);
        else if (!read_own_table(key, entry))
          unknown_in_list(options, join_key(key, entry.key), entry);
      }
      std::vector<Options>& all = config_.lists[key];
      const bool group = key == kGroupTable;
      const char* first = group ? "pattern" : "name";
      if (item.find(first) == nullptr ||
          (options.is_given(first) && options.get_string(first).empty()))
        refuse(ErrorCode::missing_key,
               "number " + std::to_string(all.size() + 1) + " of [[" + key + "]] has no " + first +
                   (group ? ": it is of no parameter" : ": its metrics would have none"),
               key + "." + first, item.place,
               group ? std::vector<std::string>{"add pattern = \"model.embed_tokens.*\"",
                                                "add pattern = \"*\", which is every parameter"}
                     : std::vector<std::string>{"add name = \"web\", or what else it is"});
      if (group && options.get_bool("frozen"))
        for (const char* idle : {"lr_factor", "weight_decay"})
          if (options.value(idle) != default_of(*schema.find(idle)))
            diagnostics_.notice(key + "." + idle + " of \"" + options.get_string("pattern") +
                                "\" has no effect with frozen = true");
      all.push_back(std::move(options));
    }
  }

  // [dataset.mix.jsonl] below one of [[dataset.mix]]: as [dataset.jsonl], of this source alone.
  bool read_own_table(const std::string& list, const Entry& entry) {
    const std::string name = list_below(list, entry.key);
    const auto found =
        std::ranges::find(plugins_.components, table_of_all(name),
                          [](const auto& component) { return component.schema.table; });
    if (!entry.value.is_table() || found == plugins_.components.end()) return false;
    OptionSchema schema = found->schema;
    schema.table = name;
    std::vector<Options>& all = config_.lists[name];
    all.resize(config_.lists[list].size() + 1, Options(schema));
    for (const Entry& one : entry.value.entries) {
      if (const meshwright_option* option = schema.find(one.key))
        set(all.back(), *option, one, one.key);
      else
        unknown_in_list(all.back(), join_key(name, one.key), one);
    }
    return true;
  }
  // Tables below later ones may be missing.
  void fill_own_tables() {
    for (const char* list : {kMixTable, kSetTable})
      for (const auto& [name, tables] : lists_below_tables(config_, list))
        config_.lists[list_below(list, name)].resize(config_.lists[list].size(),
                                                     Options(tables->front().schema()));
  }

  void unknown_in_list(const Options& options, const std::string& key, const Entry& entry) {
    std::map<std::string, Options> tables = config_.tables;
    const std::string& table = options.schema().table;
    tables.emplace(table, options);
    diagnostics_.add(unknown_key({tables, plugins_, active_schema()}, table, key, entry,
                                 source_.origin(entry.place)));
  }

  // Under another name, or in the flat form.
  bool read_elsewhere(const std::string& name, const Entry& entry) {
    Options* here = find_table(name);
    return (here != nullptr && by_alias(*here, entry)) ||
           (name == "distributed" && flat_form(entry));
  }

  // A table that the original nests where options stand side by side today: [multimodal]
  // frozen_sharding is the older name "multimodal.frozen_sharding". False when no older name starts
  // like that.
  bool nested_names(const std::string& name, const Entry& table) {
    if (!table.value.is_table()) return false;
    const std::string prefix = table.key + ".";
    auto has_such_alias = [&](const Options& options) {
      const auto& all = options.schema().options;
      return std::any_of(all.begin(), all.end(), [&](const meshwright_option* option) {
        auto aliases = aliases_of(*option);
        return std::any_of(aliases.begin(), aliases.end(),
                           [&](const Alias& alias) { return alias.name.starts_with(prefix); });
      });
    };
    const Options* here = find_table(name);
    bool known = here != nullptr && has_such_alias(*here);
    if (name == "distributed")
      for (const StrategySchema& s : strategies_)
        if (const Options* theirs = find_table(s.schema.table))
          known = known || has_such_alias(*theirs);
    if (!known) return false;
    for (const Entry& entry : table.value.entries) {
      Entry one = entry;
      one.key = prefix + entry.key;
      if (!read_elsewhere(name, one))
        unknown(name + "." + table.key, full_key(name + "." + table.key, entry.key), entry);
    }
    return true;
  }

  // Checks and stores one value under `option`'s own name.
  void set(Options& table, const meshwright_option& option, const Entry& entry,
           const std::string& written, const Value* replaced = nullptr) {
    const Value& value = replaced != nullptr ? *replaced : entry.value;
    std::string key = full_key(table.schema().table, option.name);
    Origin origin = source_.origin(entry.value.place);
    if (table.is_given(option.name)) {
      return refuse(ErrorCode::conflict, key + " is set twice, the second time as " + written, key,
                    entry.value.place, {"keep one of the two"});
    }
    if (set_as_text(table, option, value, key, origin)) return;
    std::optional<OptionValue> converted = to_option_value(value);
    bool takes_tables = (option.type & MESHWRIGHT_STRING_MAP) != 0;
    if (!converted && value.is_table() && value.entries.empty() && takes_tables)
      converted = StringMap{};
    if (!converted || (value.is_table() && !takes_tables))
      return refuse(ErrorCode::wrong_type,
                    key + " wants " + describe_type(option) + ", found " + found_text(value), key,
                    entry.value.place, fitting_settings(option, key));
    try {
      table.set(option.name, *converted, origin);
    } catch (Error& error) {
      if (error.code() == ErrorCode::bad_choice) help_with_own_optimizer(key, error);
      if (std::optional<Error> later = later_than_this(key, value)) {
        help_with_own_optimizer(key, *later);
        diagnostics_.add(later->at(origin));
      } else if (names_plugin(table, option, value))
        refuse(error.code(), error.message(), key, entry.value.place,
               {"set " + full_key(table.schema().table, "plugin") + " = \"" + value.text +
                "\" in its place: that is a plugin's"});
      else if (std::string_view(option.name) == "path" &&
               std::holds_alternative<std::vector<std::string>>(*converted))
        refuse(error.code(), error.message(), key, entry.value.place,
               {"several files are a folder or a pattern: set " + key + " = \"data/*.jsonl\""});
      else
        diagnostics_.add(error);
      return;
    }
    // Said to those who ask for something, not to those who write the default down.
    if ((option.flags & MESHWRIGHT_NO_EFFECT) != 0 &&
        table.value(option.name) != default_of(option))
      diagnostics_.notice(key + " is accepted, but has no effect here: " + option.doc);
  }

  // The name of a plugin's data set as `kind`, which is for the engine's own.
  bool names_plugin(const Options& table, const meshwright_option& option,
                    const Value& value) const {
    return option.name == std::string_view("kind") && value.kind == Value::Kind::string &&
           std::any_of(plugins_.components.begin(), plugins_.components.end(),
                       [&](const PluginSchemas::Component& one) {
                         return one.schema.table == table.schema().table + "." + value.text;
                       });
  }

  // --set run.name=2026-11-22: TOML reads a date there, but the option wants a string, so the text
  // itself is meant. False when the value is one that the option takes as it is, or when the text
  // is none that it takes.
  static bool set_as_text(Options& table, const meshwright_option& option, const Value& value,
                          const std::string& key, const Origin& origin) {
    if (value.typed.empty() || (option.type & MESHWRIGHT_STRING) == 0) return false;
    auto fits = [&](const std::optional<OptionValue>& candidate) {
      try {
        if (candidate) check_option(option, *candidate, key);
        return candidate.has_value();
      } catch (const Error&) {
        return false;
      }
    };
    bool numbers_too = (option.type & (MESHWRIGHT_INT | MESHWRIGHT_NUMBER)) != 0;
    if (numbers_too && (value.kind == Value::Kind::integer || value.kind == Value::Kind::number))
      return false;  // 0 may be out of range
    OptionValue text(value.typed);
    if (fits(to_option_value(value)) || !fits(text)) return false;
    table.set(option.name, text, origin);
    return true;
  }

  // The help of a refusal: settings that the option takes.
  static std::vector<std::string> fitting_settings(const meshwright_option& option,
                                                   const std::string& key) {
    try {
      bool takes_tables = (option.type & MESHWRIGHT_STRING_MAP) != 0;
      check_option(option, takes_tables ? OptionValue(StringTable{{}}) : OptionValue(StringMap{}),
                   key);
    } catch (const Error& error) {
      return error.helps();
    }
    return {};
  }

  bool by_alias(Options& table, const Entry& entry) {
    for (const meshwright_option* option : table.schema().options)
      for (const Alias& alias : aliases_of(*option)) {
        if (alias.name != entry.key) continue;
        Value value = entry.value;
        std::string text =
            value.kind == Value::Kind::boolean ? (value.boolean ? "true" : "false") : value.text;
        bool sets = true;
        for (const auto& [old, today] : alias.values) {
          if (old != text) continue;
          sets = !today.empty();
          value = parse_toml_value(today).value_or(Value(today));
          value.place = entry.value.place;
        }
        diagnostics_.notice(table.schema().table + "." + entry.key + " is another name of " +
                            full_key(table.schema().table, option->name) +
                            (sets ? "" : ", which " + text + " leaves as it is"));
        if (sets) set(table, *option, entry, entry.key, &value);
        return true;
      }
    return false;
  }

  // The flat form of the original: an option of a strategy right in [distributed]. The active
  // strategy goes first.
  bool flat_form(const Entry& entry) {
    std::vector<const StrategySchema*> order;
    if (const StrategySchema* active = active_schema()) order.push_back(active);
    for (const StrategySchema& s : strategies_)
      if (s.strategy != active_) order.push_back(&s);
    for (const StrategySchema* s : order) {
      Options* table = find_table(s->schema.table);
      if (table == nullptr) continue;
      if (const meshwright_option* option = table->schema().find(entry.key)) {
        diagnostics_.notice("distributed." + entry.key + " belongs to [" + s->schema.table +
                            "]; it is read as " + s->schema.table + "." + entry.key);
        set(*table, *option, entry, "distributed." + entry.key);
        return true;
      }
      if (by_alias(*table, entry)) return true;
    }
    return false;
  }

  void unknown(const std::string& table, const std::string& key, const Entry& entry) {
    if (table == "distributed" && entry.value.is_table()) {
      std::vector<std::string> names = {"distributed.mp_policy", "distributed.moe",
                                        "distributed.pipeline", "distributed.context"};
      for (const StrategySchema& s : strategies_) names.push_back(s.schema.table);
      return left_out("strategy", key, entry,
                      active_.empty() ? &config_.requested_strategy : nullptr, names);
    }
    if (entry.value.is_table() && !is_foreign(key, entry) &&
        std::ranges::find(kComponentTables, table) != std::end(kComponentTables)) {
      std::vector<std::string> names;
      for (const PluginSchemas::Component& one : plugins_.components)
        names.push_back(one.schema.table);
      const Entry* asked = source_.root.find(table)->value.find("plugin");
      return left_out("plugin", key, entry, asked == nullptr ? nullptr : asked->value.as_text(),
                      names);
    }
    diagnostics_.add(unknown_key({config_.tables, plugins_, active_schema()}, table, key, entry,
                                 source_.origin(entry.place)));
  }

  // A table of a plugin that was not found cannot be checked, and does nothing. That the one asked
  // for was not found is an error of its own.
  void left_out(const std::string& owner, const std::string& key, const Entry& entry,
                const std::string* asked, const std::vector<std::string>& names) {
    if (asked != nullptr && text::normal(*asked) == text::normal(entry.key)) return;
    const std::string near = nearest_name(key, names);
    diagnostics_.warning("[" + key + "] belongs to no " + owner +
                         " that was found, and is left out" +
                         (near.empty() ? "" : "; did you mean [" + near + "]?"));
  }

  const Source::Impl& source_;
  const PluginSchemas& plugins_;
  const std::vector<StrategySchema>& strategies_;
  const std::string& active_;
  Diagnostics& diagnostics_;
  Config config_;
};

}  // namespace

Config resolve(const Source& source, const PluginSchemas& plugins, const std::string& active,
               Diagnostics& diagnostics) {
  return Resolver(source.impl(), plugins, active, diagnostics).run(source.strategy());
}

}  // namespace meshwright::config
