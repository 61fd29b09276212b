#include "engine/config/sources.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <variant>

#include "engine/config/source.h"
#include "engine/config/toml_value.h"
#include "sdk/base/words.h"
#include "sdk/text/tokenizer/folder.h"

namespace meshwright::config {

namespace {

constexpr double kMostWeight = 1e12;

Error wrong(const Options& source, const std::string& key, ErrorCode code,
            const std::string& message) {
  const std::string& table = source.schema().table;
  const bool given = source.is_given(key);
  return Error(code, table + " " + meshwright::to_toml(source.get_string("name")) + ": " + message)
      .key(table + "." + key)
      .at(source.origin(given ? std::string_view(key) : "name"));
}

std::vector<std::pair<int64_t, double>> schedule_of(const Options& source) {
  std::map<int64_t, double> out;
  const auto* written = std::get_if<StringMap>(&source.value("schedule"));
  if (written == nullptr) return {};
  for (const auto& [step, weight] : *written) {
    const std::optional<int64_t> from = text::to_number(step);
    const std::optional<double> now = text::to_number<double>(weight);
    if (!from || *from < 1)
      throw wrong(source, "schedule", ErrorCode::out_of_range,
                  "schedule has " + meshwright::to_toml(step) + " in place of a step from 1 on")
          .help("set weight to what it weighs from the beginning on")
          .help("set schedule = { 1000 = " + meshwright::to_toml(now.value_or(1)) + " }");
    if (!now || !(*now >= 0 && *now <= kMostWeight))
      throw wrong(source, "schedule", ErrorCode::out_of_range,
                  "schedule has the weight " + meshwright::to_toml(weight) + " from step " + step +
                      " on, which is no number from 0 to 1e12")
          .help("set schedule = { " + step + " = 0.5 }");
    if (!out.emplace(*from, *now).second)
      throw wrong(source, "schedule", ErrorCode::conflict,
                  "schedule has step " + std::to_string(*from) + " twice")
          .help("keep one of the two");
  }
  return {out.begin(), out.end()};
}

// What the table says, and the source in its place.
Options effective(const Options& table, const Options& source) {
  Options out = table;
  // A kind of its own is in place of a plugin that the table names; files are nobody else's.
  if (source.is_set("kind")) out.set("plugin", OptionValue(), source.origin("kind"));
  out.set("path", OptionValue(), source.origin("name"));
  for (const meshwright_option* option : table.schema().options) {
    if (source.schema().find(option->name) == nullptr || !source.is_given(option->name)) continue;
    // No tokenizer of its own is none said: as the table has it.
    const bool unset =
        (option->flags & MESHWRIGHT_OPTIONAL) != 0 && std::string_view(option->name) != "tokenizer";
    if (source.is_set(option->name) || unset)
      out.set(option->name, source.value(option->name), source.origin(option->name));
  }
  return out;
}

bool is_named(const Options& table) {
  return table.is_set("path") || table.is_set("plugin") ||
         (table.is_given("kind") && table.get_string("kind") == "mock");
}

}  // namespace

std::string sources_of(const std::string& table) {
  return table == "dataset" ? kMixTable : kSetTable;
}

ModelPath language_folder(const std::string& pretrained, const std::string& config) {
  if (!pretrained.empty() || config.empty()) return {pretrained, "pretrained"};
  const std::filesystem::path folder = base::model_file(config).parent_path();
  const std::string beside = folder.empty() ? "." : folder.string();
  return {tokenizer::tokenizer_file(beside) ? beside : "", "config"};
}

ModelPath language_folder(const Options& model) {
  return language_folder(model.get_string("pretrained"), model.get_string("config"));
}

std::string list_below(const std::string& list, const std::string& name) {
  return list + "." + name;
}

std::vector<std::pair<std::string, const std::vector<Options>*>> lists_below_tables(
    const Config& config, const std::string& list) {
  std::vector<std::pair<std::string, const std::vector<Options>*>> out;
  const std::string prefix = list_below(list, "");
  for (const auto& [name, tables] : config.lists)
    if (name.starts_with(prefix)) out.emplace_back(name.substr(prefix.size()), &tables);
  return out;
}

std::string table_of_all(const std::string& table) {
  for (const char* of : {"dataset", "validation_dataset"})
    if (const std::string prefix = list_below(sources_of(of), ""); table.starts_with(prefix))
      return std::string(of) + "." + table.substr(prefix.size());
  return {};
}

bool says_any(const Options& table) {
  return std::ranges::any_of(table.schema().options, [&](const meshwright_option* option) {
    return table.is_given(option->name);
  });
}

namespace {

// What the table of all sources says to this plugin, and a source's own in its place.
std::optional<Options> plugin_options(const Config& config, const std::string& table,
                                      const std::string& plugin, size_t source) {
  const auto of_all = config.tables.find(table + "." + plugin);
  if (of_all == config.tables.end()) return std::nullopt;
  const auto own = config.lists.find(list_below(sources_of(table), plugin));
  if (own == config.lists.end() || !says_any(own->second[source])) return of_all->second;
  Options out = own->second[source];
  for (const meshwright_option* option : out.schema().options)
    if (!out.is_given(option->name) && of_all->second.is_given(option->name))
      out.set(option->name, of_all->second.value(option->name),
              of_all->second.origin(option->name));
  return out;
}

}  // namespace

std::vector<NamedSource> named_sources(const Config& config, const std::string& table) {
  std::vector<NamedSource> out;
  for (const Options& source : config.list(sources_of(table))) {
    NamedSource one{source.get_string("name"), effective(config.table(table), source),
                    source.origin("name")};
    if (table == "dataset") {
      auto number = [&](const char* key) {
        return source.is_set(key) ? std::optional(source.get_number(key)) : std::nullopt;
      };
      one.weight = number("weight");
      one.epochs = number("epochs");
      one.schedule = schedule_of(source);
    }
    if (const std::string plugin = component_of(one.options); !plugin.empty())
      one.plugin = plugin_options(config, table, plugin, out.size());
    out.push_back(std::move(one));
  }
  return out;
}

std::vector<std::pair<std::string, Origin>> source_plugins(const Source& source,
                                                           const std::string& table) {
  std::vector<std::pair<std::string, Origin>> out;
  const Source::Impl& impl = source.impl();
  const Entry* whole = impl.root.find(table);
  if (whole == nullptr) return out;
  for (const Value* one : tables_of(whole->value, sources_of(table).substr(table.size() + 1))) {
    if (const std::string plugin = text_at(one, "plugin"); !plugin.empty()) {
      out.emplace_back(plugin, impl.origin(one->find("plugin")->value.place));
      continue;
    }
    if (!reads_text(*one, &whole->value)) continue;
    std::string tokenizer = text_at(one, "tokenizer");
    if (tokenizer.empty()) tokenizer = source.tokenizer(table.c_str());
    if (!tokenizer.empty() && tokenizer != kBytes)
      out.emplace_back(kTextComponent, impl.origin(one->place));
  }
  return out;
}

std::string component_of(const Options& source) {
  if (source.is_set("plugin")) return source.get_string("plugin");
  const bool tokens = source.get_string("kind") == "text" && source.is_set("tokenizer") &&
                      source.get_string("tokenizer") != kBytes;
  return tokens ? kTextComponent : "";
}

bool names_data(const Config& config, const std::string& table) {
  return !config.list(sources_of(table)).empty() || is_named(config.table(table));
}

bool reads_bytes(const Config& config, const std::string& table) {
  auto reads = [](const Options& options) {
    return component_of(options).empty() && options.get_string("kind") == "text";
  };
  const std::vector<NamedSource> sources = named_sources(config, table);
  return sources.empty() ? reads(config.table(table))
                         : std::ranges::all_of(sources, reads, &NamedSource::options);
}

namespace {

class Checks {
 public:
  Checks(const Config& config, const std::string& table, Diagnostics& diagnostics)
      : config_(config),
        table_(config.table(table)),
        sources_(config.list(sources_of(table))),
        key_(sources_of(table)),
        diagnostics_(diagnostics) {}

  void run() {
    if (sources_.empty()) return;
    if (table_.is_set("path"))
      diagnostics_.add(option_error(table_, "path", ErrorCode::conflict,
                                    table_.schema().table + ".path names data, and so does [[" +
                                        key_ + "]]: one of them",
                                    "\"none\"")
                           .help("add a [[" + key_ + "]] with that path"));
    for (size_t i = 0; i < sources_.size(); ++i) {
      check_name(i);
      check_data(sources_[i]);
      check_own(i);
      tell_idle(sources_[i]);
    }
    if (table_.schema().table == "dataset") check_weights();
  }

 private:
  void add(Error error) { diagnostics_.add(std::move(error)); }

  void check_name(size_t number) {
    const std::string name = sources_[number].get_string("name");
    for (size_t i = 0; i < number && !name.empty(); ++i)
      if (sources_[i].get_string("name") == name)
        return add(wrong(sources_[number], "name", ErrorCode::conflict,
                         "number " + std::to_string(i + 1) + " has the same name")
                       .help("set name = " + meshwright::to_toml(name + "_2")));
  }

  void check_data(const Options& source) {
    const Options options = effective(table_, source);
    const bool plugin = options.is_set("plugin");
    const std::string kind = options.get_string("kind");
    if (!plugin && kind != "mock" && options.get_string("path").empty())
      add(wrong(source, "path", ErrorCode::missing_key,
                "it has no path: where its data of kind \"" + kind + "\" is")
              .help(std::string("add path = \"data/") + (kind == "text" ? "*.txt" : "train.bin") +
                    "\"")
              .help("add kind = \"mock\" for synthetic tokens"));
    if (plugin && source.is_set("kind"))
      add(wrong(source, "kind", ErrorCode::conflict,
                "kind and plugin both say what it is: one of them")
              .help("leave out kind"));
    if (plugin && source.is_set("packing") && source.get_bool("packing"))
      add(wrong(source, "packing", ErrorCode::conflict,
                "packing keeps documents of token streams apart, but a plugin says itself which "
                "documents a sample has")
              .help("leave out packing"));
    if (!plugin && options.get_bool("packing") && !options.is_set("document_end"))
      add(wrong(source, "document_end", ErrorCode::missing_key,
                "packing = true needs the token that ends a document")
              .help("add document_end = 2, or whatever the tokenizer's end is")
              .help("add packing = false"));
  }

  // A table for a plugin that does not read it would be left out without a word.
  void check_own(size_t number) {
    const Options options = effective(table_, sources_[number]);
    const bool plugin = options.is_set("plugin"), bytes = options.get_string("tokenizer") == kBytes;
    const std::string kind = options.get_string("kind");
    // A text is read by a plugin where there is a tokenizer, which the model may bring later on.
    const std::string reads = plugin                     ? options.get_string("plugin")
                              : kind == "text" && !bytes ? kTextComponent
                                                         : "";
    for (const auto& [name, tables] : lists_below_tables(config_, key_)) {
      if (name == reads || !says_any((*tables)[number])) continue;
      const bool of_text = name == kTextComponent, by_tokenizer = of_text && kind == "text";
      add(wrong(sources_[number],
                plugin         ? "plugin"
                : by_tokenizer ? "tokenizer"
                               : "kind",
                ErrorCode::conflict,
                "it has a table [" + list_below(key_, name) + "], but is " +
                    (plugin         ? "read by the plugin " + options.get_string("plugin")
                     : by_tokenizer ? "read as bytes"
                                    : "of kind \"" + kind + "\""))
              .help(plugin && of_text ? "set kind = \"text\" and leave out plugin"
                    : by_tokenizer    ? "set tokenizer to the folder of one"
                    : of_text         ? "set kind = \"text\""
                                      : "set plugin = \"" + name + "\"")
              .help("leave out [" + list_below(key_, name) + "]"));
    }
  }

  // As the rules of cross_checks.cpp have it of [dataset].
  void tell_idle(const Options& source) {
    const Options options = effective(table_, source);
    const bool plugin = options.is_set("plugin");
    const std::string kind = options.get_string("kind");
    const struct {
      const char* key;
      bool works;
      const char* because;
    } rules[] = {{"path", plugin || kind != "mock", "with kind = \"mock\""},
                 {"dtype", !plugin && kind == "tokens", "unless kind = \"tokens\""},
                 {"tokenizer", !plugin && kind == "text", "unless kind = \"text\""},
                 {"document_end", options.get_bool("packing"), "without packing = true"}};
    for (const auto& [key, works, because] : rules)
      if (!works && source.is_set(key) && source.value(key) != OptionValue(std::string("auto")))
        diagnostics_.notice(key_ + "." + key + " of " +
                            meshwright::to_toml(source.get_string("name")) + " has no effect " +
                            (plugin ? "with plugin" : because));
  }

  void check_weights() {
    std::vector<NamedSource> read;
    try {
      read = named_sources(config_, "dataset");
    } catch (const Error& error) {
      return add(error);
    }
    const bool epochs =
        std::ranges::any_of(read, [](const auto& one) { return one.epochs.has_value(); });
    bool wrong_found = false;
    auto refuse = [&](Error error) {
      wrong_found = true;
      add(std::move(error));
    };
    for (size_t i = 0; i < read.size(); ++i) {
      const NamedSource& one = read[i];
      const Options& source = sources_[i];
      for (const char* key : {"weight", "epochs"})
        if (source.is_set(key) && source.get_number(key) > kMostWeight)
          refuse(wrong(source, key, ErrorCode::out_of_range,
                       std::string(key) + " is above 1e12, which leaves nothing to the others")
                     .help(std::string("set ") + key + " = 1"));
      if (one.weight && one.epochs)
        refuse(wrong(source, "epochs", ErrorCode::conflict,
                     "weight and epochs are both set: one of them says how much is read of it")
                   .help("leave out epochs")
                   .help("leave out weight, here and of the other sources"));
      else if (epochs && !one.epochs)
        refuse(wrong(source, one.weight ? "weight" : "epochs", ErrorCode::conflict,
                     "another source has epochs, and so must this one")
                   .help("set epochs = 1 in place of weight")
                   .help("leave out epochs of all sources, for weights"));
      if (one.epochs && !one.schedule.empty())
        refuse(wrong(source, "schedule", ErrorCode::conflict,
                     "a schedule changes weights, and this mix has epochs")
                   .help("leave out schedule")
                   .help("set weight in place of epochs, of all sources"));
      if (one.weight == 0 && one.schedule.empty())
        refuse(wrong(source, "weight", ErrorCode::out_of_range,
                     "weight = 0, and no schedule changes that: nothing would be read of it")
                   .help("set weight = 1")
                   .help("leave out this [[" + key_ + "]]"));
    }
    if (!wrong_found && !epochs) check_stages(read);
  }

  // From each step of any schedule on, something must be read.
  void check_stages(const std::vector<NamedSource>& read) {
    std::set<int64_t> steps{0};
    for (const NamedSource& one : read)
      for (const auto& [step, weight] : one.schedule) steps.insert(step);
    auto weighs = [](const NamedSource& one, int64_t step) {
      double weight = one.weight.value_or(1);
      for (const auto& [from, now] : one.schedule)
        if (from <= step) weight = now;
      return weight > 0;
    };
    for (int64_t step : steps) {
      if (std::ranges::any_of(read, [&](const auto& one) { return weighs(one, step); })) continue;
      size_t last = 0;
      for (size_t i = 0; i < read.size(); ++i)
        if (!read[i].schedule.empty()) last = i;
      return add(wrong(sources_[last], "schedule", ErrorCode::out_of_range,
                       "from step " + std::to_string(step) +
                           " on all weights are 0: there would be nothing to read")
                     .help("set a weight above 0 from step " + std::to_string(step) + " on"));
    }
    const Options& length = config_.table("step_scheduler");
    if (steps.size() > 1 && length.is_set("epochs"))
      add(Error(ErrorCode::conflict,
                "step_scheduler.epochs counts how often the mix is read, which has no number "
                "where a schedule of [[dataset.mix]] changes its weights")
              .key("step_scheduler.epochs")
              .at(length.origin("epochs"))
              .help("set step_scheduler.max_steps = 200 and step_scheduler.epochs = \"none\""));
  }

  const Config& config_;
  const Options& table_;
  const std::vector<Options>& sources_;
  std::string key_;
  Diagnostics& diagnostics_;
};

}  // namespace

void check_sources(const Config& config, const std::string& table, Diagnostics& diagnostics) {
  Checks(config, table, diagnostics).run();
}

}  // namespace meshwright::config
