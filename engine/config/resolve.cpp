// The second pass: every value against its schema, older forms moved to where they belong, all
// problems collected.
#include <algorithm>
#include <set>

#include "engine/config/config.h"
#include "engine/config/idle.h"
#include "engine/config/later.h"
#include "engine/config/listen_address.h"
#include "engine/config/source.h"
#include "engine/config/unknown_key.h"
#include "meshwright/tp_plan.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/words.h"

namespace meshwright::config {
namespace {

constexpr const char* kDroppedKeys[] = {"_target_", "_recursive_", "_convert_"};

// "old{x=1,y=2,z=}": another name, and what its values mean today; z sets nothing.
struct Alias {
  std::string name;
  std::vector<std::pair<std::string, std::string>> values;
};

std::vector<Alias> aliases_of(const meshwright_option& option) {
  std::vector<Alias> out;
  if (option.aliases == nullptr) return out;
  for (const std::string& text : text::split(option.aliases, '|')) {
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
    cross_checks();
    read_shared();
    tell_idle(config_, diagnostics_);
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
        diagnostics_.add(
            Error(ErrorCode::wrong_type, key + " is a table, found " + found_text(entry.value))
                .key(key)
                .at(source_.origin(entry.value.place))
                .help("write [" + key + "] on a line of its own, with its keys below"));
      } else if (std::find(std::begin(kDroppedKeys), std::end(kDroppedKeys), entry.key) !=
                     std::end(kDroppedKeys) &&
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
      diagnostics_.add(
          Error(ErrorCode::wrong_type, key + " " + what + ", found " + found_text(found))
              .key(key)
              .at(source_.origin(found.place))
              .help(help));
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
        else
          unknown_in_list(options, join_key(key, entry.key), entry);
      }
      std::vector<Options>& all = config_.lists[key];
      if (item.find("pattern") == nullptr ||
          (options.is_given("pattern") && options.get_string("pattern").empty()))
        diagnostics_.add(
            Error(ErrorCode::missing_key, "number " + std::to_string(all.size() + 1) + " of [[" +
                                              key + "]] has no pattern: it is of no parameter")
                .key(key + ".pattern")
                .at(source_.origin(item.place))
                .help("add pattern = \"model.embed_tokens.*\"")
                .help("add pattern = \"*\", which is every parameter"));
      if (options.get_bool("frozen"))
        for (const char* idle : {"lr_factor", "weight_decay"})
          if (options.value(idle) != default_of(*schema.find(idle)))
            diagnostics_.notice(key + "." + idle + " of \"" + options.get_string("pattern") +
                                "\" has no effect with frozen = true");
      all.push_back(std::move(options));
    }
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
      diagnostics_.add(
          Error(ErrorCode::conflict, key + " is set twice, the second time as " + written)
              .key(key)
              .at(origin)
              .help("keep one of the two"));
      return;
    }
    if (set_as_text(table, option, value, key, origin)) return;
    std::optional<OptionValue> converted = to_option_value(value);
    bool takes_tables = (option.type & MESHWRIGHT_STRING_MAP) != 0;
    if (!converted && value.is_table() && value.entries.empty() && takes_tables)
      converted = StringMap{};
    if (!converted || (value.is_table() && !takes_tables)) {
      Error error(ErrorCode::wrong_type,
                  key + " wants " + describe_type(option) + ", found " + found_text(value));
      error.key(key).at(origin);
      for (const std::string& help : fitting_settings(option, key)) error.help(help);
      diagnostics_.add(std::move(error));
      return;
    }
    try {
      table.set(option.name, *converted, origin);
    } catch (const Error& error) {
      if (std::optional<Error> later = later_than_this(key, value))
        diagnostics_.add(later->at(origin));
      else if (names_plugin(table, option, value))
        diagnostics_.add(Error(error.code(), error.message())
                             .key(key)
                             .at(origin)
                             .help("set " + full_key(table.schema().table, "plugin") + " = \"" +
                                   value.text + "\" in its place: that is a plugin's"));
      else if (std::string_view(option.name) == "path" &&
               std::holds_alternative<std::vector<std::string>>(*converted))
        diagnostics_.add(Error(error.code(), error.message())
                             .key(key)
                             .at(origin)
                             .help("several files are a folder or a pattern: set " + key +
                                   " = \"data/*.jsonl\""));
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
      // A table of a strategy that was not found: it cannot be checked, and it does nothing. That
      // the one asked for was not found is an error of its own.
      if (active_.empty() && text::normal(entry.key) == text::normal(config_.requested_strategy))
        return;
      std::vector<std::string> names = {"distributed.mp_policy", "distributed.moe",
                                        "distributed.pipeline", "distributed.context"};
      for (const StrategySchema& s : strategies_) names.push_back(s.schema.table);
      std::string near = nearest_name(key, names);
      diagnostics_.warning("[" + key + "] belongs to no strategy that was found, and is left out" +
                           (near.empty() ? "" : "; did you mean [" + near + "]?"));
      return;
    }
    if (entry.value.is_table() && holds_components(table) && !is_foreign(key, entry)) {
      // The same of a model family or a data set.
      if (const Entry* asked = source_.root.find(table)->value.find("plugin"))
        if (const std::string* name = asked->value.as_text();
            name != nullptr && text::normal(*name) == text::normal(entry.key))
          return;
      std::vector<std::string> names;
      for (const PluginSchemas::Component& one : plugins_.components)
        names.push_back(one.schema.table);
      std::string near = nearest_name(key, names);
      diagnostics_.warning("[" + key + "] belongs to no plugin that was found, and is left out" +
                           (near.empty() ? "" : "; did you mean [" + near + "]?"));
      return;
    }
    diagnostics_.add(unknown_key({config_.tables, plugins_, active_schema()}, table, key, entry,
                                 source_.origin(entry.place)));
  }

  static bool holds_components(const std::string& table) {
    return std::any_of(std::begin(kComponentTables), std::end(kComponentTables),
                       [&](const char* one) { return table == one; });
  }

  // Rules between keys that need no strategy.
  void cross_checks() {
    const Options& model = config_.tables.at("model");
    if (model.is_set("config") && model.is_set("pretrained"))
      diagnostics_.add(Error(ErrorCode::conflict, "model.config and model.pretrained are both set")
                           .key("model.pretrained")
                           .at(model.origin("pretrained"))
                           .help("set model.pretrained = \"none\" for random weights")
                           .help("set model.config = \"none\" to load the folder's weights"));
    const Options& optimizer = config_.tables.at("optimizer");
    if (const auto* betas = std::get_if<std::vector<double>>(&optimizer.value("betas"));
        betas != nullptr && betas->size() != 2)
      diagnostics_.add(Error(ErrorCode::out_of_range, "optimizer.betas wants two numbers, found " +
                                                          std::to_string(betas->size()))
                           .key("optimizer.betas")
                           .at(optimizer.origin("betas"))
                           .help("set optimizer.betas = [0.9, 0.95]"));
    for (const char* name : {"dataset", "validation_dataset"}) check_packing(name);
    check_adapters();
    check_steps();
    check_best();
    check_report();
    const Options& schedule = config_.tables.at("lr_scheduler");
    if (schedule.get_number("min_lr") > optimizer.get_number("lr"))
      diagnostics_.add(
          Error(ErrorCode::conflict,
                "lr_scheduler.min_lr = " + meshwright::to_toml(schedule.value("min_lr")) +
                    " is above optimizer.lr = " + meshwright::to_toml(optimizer.value("lr")))
              .key("lr_scheduler.min_lr")
              .at(schedule.origin("min_lr"))
              .help("set lr_scheduler.min_lr = 0")
              .help("set lr_scheduler.min_lr = " + meshwright::to_toml(optimizer.value("lr")) +
                    " and lr_scheduler.lr_decay_style = \"constant\""));
  }

  void check_adapters() {
    const Options& lora = config_.tables.at("lora");
    if (!lora.get_bool("dora")) return;
    diagnostics_.add(Error(ErrorCode::not_in_release,
                           "lora.dora = true: adapters with magnitudes are not in this version")
                         .key("lora.dora")
                         .at(lora.origin("dora"))
                         .help("set lora.dora = false, and raise lora.r where adapters learn too "
                               "little"));
  }

  // Whether a value was given that cannot be: then nothing follows from the default in its place.
  bool refused(const std::string& key) const {
    return std::any_of(diagnostics_.errors().begin(), diagnostics_.errors().end(),
                       [&](const Error& error) { return error.key() == key; });
  }

  // Steps or epochs. What epochs come to is known where the data is: until then max_steps is
  // "none", also in what the run keeps of its configuration.
  void check_steps() {
    Options& steps = config_.tables.at("step_scheduler");
    const bool given = steps.is_given("max_steps");
    if (!steps.is_set("epochs")) {
      if (!steps.is_set("max_steps") && !refused("step_scheduler.epochs"))
        diagnostics_.add(
            option_error(steps, "max_steps", ErrorCode::missing_key,
                         "step_scheduler.max_steps and step_scheduler.epochs are both \"none\": "
                         "how long the run is, one of them must say",
                         "200")
                .help("set step_scheduler.epochs = 1"));
      return;
    }
    if (given && steps.is_set("max_steps")) {
      diagnostics_.add(Error(ErrorCode::conflict,
                             "step_scheduler.max_steps and step_scheduler.epochs are both set: "
                             "leave out one of them")
                           .key("step_scheduler.epochs")
                           .at(steps.origin("epochs"))
                           .help("set step_scheduler.epochs = \"none\" to count steps")
                           .help("set step_scheduler.max_steps = \"none\" to count epochs"));
      return;
    }
    if (!given) steps.set("max_steps", OptionValue(), steps.origin("epochs"));
    const Options& data = config_.tables.at("dataset");
    if (data.get_string("kind") == "mock" && !data.is_set("plugin"))
      diagnostics_.add(Error(ErrorCode::conflict,
                             "step_scheduler.epochs counts how often a data set is read, but "
                             "dataset.kind = \"mock\" makes tokens without an end")
                           .key("step_scheduler.epochs")
                           .at(steps.origin("epochs"))
                           .help("set step_scheduler.max_steps = 200 and step_scheduler.epochs = "
                                 "\"none\"")
                           .help("or name files: dataset.kind and dataset.path"));
  }

  void check_best() {
    const Options& saving = config_.tables.at("checkpoint");
    const Options& data = config_.tables.at("validation_dataset");
    if (saving.get_bool("best") && data.get_string("kind") != "mock" && !data.is_set("path") &&
        !data.is_set("plugin"))
      diagnostics_.add(
          Error(ErrorCode::missing_key,
                "checkpoint.best = true needs data to find the validation loss on")
              .key("validation_dataset.path")
              .at(saving.origin("best"))
              .help("set validation_dataset.path = \"my_texts/*.txt\", or what else it is")
              .help("set checkpoint.best = false"));
  }

  void check_report() {
    const Options& report = config_.tables.at("report");
    try {
      if (report.is_set("prometheus"))
        parse_listen_address(report.get_string("prometheus"), "report.prometheus");
    } catch (const Error& error) {
      diagnostics_.add(Error(error).at(report.origin("prometheus")));
    }
    if (report.is_set("prometheus_file") && report.get_string("prometheus_file").empty())
      diagnostics_.add(Error(ErrorCode::out_of_range, "report.prometheus_file is empty")
                           .key("report.prometheus_file")
                           .at(report.origin("prometheus_file"))
                           .help("set report.prometheus_file = \"none\"")
                           .help("set report.prometheus_file = "
                                 "\"/var/lib/prometheus/node-exporter\", Debian's folder"));
    if (report.is_set("machine") && report.get_string("machine").empty())
      diagnostics_.add(Error(ErrorCode::out_of_range, "report.machine is empty")
                           .key("report.machine")
                           .at(report.origin("machine"))
                           .help("set report.machine = \"none\"")
                           .help("set report.machine = \"h100x8\""));
  }

  void check_packing(const std::string& name) {
    const Options& data = config_.tables.at(name);
    const std::string end = name + ".document_end";
    if (data.get_bool("packing") && data.is_set("plugin"))
      diagnostics_.add(Error(ErrorCode::conflict,
                             name + ".packing = true keeps documents of token streams apart, but " +
                                 name + ".plugin = \"" + data.get_string("plugin") +
                                 "\" says itself which documents a sample has")
                           .key(name + ".packing")
                           .at(data.origin("packing"))
                           .help("set " + name + ".packing = false")
                           .help("set " + name + ".plugin = \"none\""));
    else if (data.get_bool("packing") && !data.is_set("document_end"))
      diagnostics_.add(Error(ErrorCode::missing_key,
                             name + ".packing = true needs the token that ends a document")
                           .key(end)
                           .at(data.origin("packing"))
                           .help("set " + end + " = 2, or whatever the tokenizer's end is")
                           .help("set " + name + ".packing = false"));
    if (data.is_set("document_end") && !data.get_bool("packing"))
      diagnostics_.notice(end + " has no effect without " + name + ".packing = true");
  }

  void read_shared() {
    Diagnostics found;
    try {
      config_.shared = read_shared_options(
          config_.tables.at("distributed"), config_.tables.at("distributed.mp_policy"),
          config_.tables.at("distributed.moe"), config_.tables.at("distributed.moe.mp_policy"),
          config_.tables.at("distributed.pipeline"), config_.tables.at("distributed.context"),
          found);
      check_pipeline_options(config_.shared, found);
    } catch (const Error& error) {
      found.add(error);
    }
    for (const std::string& text : found.notices()) diagnostics_.notice(text);
    for (const std::string& text : found.warnings()) diagnostics_.warning(text);
    for (const Error& error : found.errors()) diagnostics_.add(placed(error, config_));
    check_styles();
  }

  // A table of pattern = style needs no model to be judged, so each wrong style is told with its
  // own line.
  void check_styles() {
    for (const auto& [pattern, style] : config_.shared.tp_plan.patterns) {
      try {
        parse_style(style);
      } catch (const Error& error) {
        std::string key = join_key("distributed.tp_plan", pattern);
        Error refusal(error.code(), key + ": " + error.message());
        refusal.key(key);
        const Entry* distributed = source_.root.find("distributed");
        const Entry* plan = distributed == nullptr ? nullptr : distributed->value.find("tp_plan");
        if (const Entry* entry = plan == nullptr ? nullptr : find_pattern(plan->value, "", pattern))
          refusal.at(source_.origin(entry->value.place));
        for (const std::string& help : error.helps()) refusal.help(help);
        diagnostics_.add(std::move(refusal));
      }
    }
  }

  // Where a pattern was written; its dots may have become nested tables.
  static const Entry* find_pattern(const Value& table, const std::string& prefix,
                                   const std::string& pattern) {
    for (const Entry& entry : table.entries) {
      std::string name = prefix.empty() ? entry.key : prefix + "." + entry.key;
      if (!entry.value.is_table() && name == pattern) return &entry;
      if (entry.value.is_table())
        if (const Entry* found = find_pattern(entry.value, name, pattern)) return found;
    }
    return nullptr;
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
