#include "apps/migrate/migrator.h"

#include <algorithm>
#include <filesystem>

#include "engine/config/describe.h"
#include "engine/config/sources.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"

namespace meshwright::config {
namespace {

using Line = Migration::Line;

// What stands in a comment must not end it: words of the other file are quoted there.
std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = ' ';
  return text;
}

// The comment behind a value that is a guess.
std::string comment_of(const std::string& why) {
  return why.empty() ? "" : "  # guessed: " + one_line(why);
}

std::string shown(const Value& value) { return shortened(to_toml(value), 80); }

// The row of foreign.cpp that a key of theirs stands in; empty: in none, or in one of several names
// without a counterpart.
std::string_view row_of(std::string_view key) {
  for (const ForeignName& known : foreign_names())
    if (known.name == key && *known.key != '\0') return known.first;
  return {};
}

// Tables whose keys have the names and the meaning of those in a table of ours.
constexpr std::pair<std::string_view, const char*> kTablesElsewhere[] = {
    {"autopipeline.", "distributed.pipeline."},
    {"fsdp.", "distributed."},
    {"parallelizer.", "distributed."}};

// The key under the name that its table has here.
std::string placed(const std::string& key) {
  for (const auto& [theirs, ours] : kTablesElsewhere)
    if (key.starts_with(theirs)) return ours + key.substr(theirs.size());
  return key;
}

std::string see(const ForeignName& name) {
  const std::string note = name.note, key = name.key;
  return key.empty() ? note : "see " + key + (note.empty() ? "" : ": " + note);
}

}  // namespace

Value product(double a, double b) {
  return number_value(text::read_real(text::format("%.15g", a * b).c_str()));
}

std::string local_folder(const std::string& name) {
  std::error_code failed;
  const bool hub = std::count(name.begin(), name.end(), '/') == 1 && name[0] != '/' &&
                   name[0] != '.' && name[0] != '~' && name[0] != '<' && !name.ends_with('/') &&
                   name.size() < 200 && !std::filesystem::exists(name, failed);
  return hub ? "models/" + name.substr(name.find('/') + 1) : name;
}

std::string download(const std::string& name) {
  const std::string folder = local_folder(name);
  if (folder == name) return {};
  std::error_code failed;
  if (std::filesystem::exists(folder + "/config.json", failed))
    return "the folder that is here already, for " + name;
  return "download it first: hf download " + name + " --local-dir " + folder;
}

bool is_path(const std::string& text) {
  std::error_code failed;
  return text.starts_with('/') || text.starts_with('.') || text.starts_with('~') ||
         text.ends_with(".jsonl") || text.ends_with(".json") || text.ends_with(".ndjson") ||
         text.find('*') != std::string::npos || std::count(text.begin(), text.end(), '/') > 1 ||
         (text.size() < 200 && std::filesystem::exists(text, failed));
}

Migrator::Migrator(std::vector<Leaf> leaves, std::string program, PluginSchemas plugins)
    : leaves_(std::move(leaves)), plugins_(std::move(plugins)), schemas_(all_schemas(plugins_)) {
  out_.program = std::move(program);
}

void Migrator::add_default(const std::string& key, std::string_view toml) {
  if (find(key) == nullptr) leaves_.push_back({key, {}, *parse_toml_value(toml)});
}

Leaf* Migrator::find(std::string_view key) {
  for (Leaf& leaf : leaves_)
    if (leaf.key == key) return &leaf;
  for (Leaf& leaf : leaves_)
    if (placed(leaf.key) == key) return &leaf;
  const std::string_view row = row_of(key);
  for (Leaf& leaf : leaves_)
    if (!row.empty() && leaf.key.find('.') != std::string::npos && row_of(leaf.key) == row)
      return &leaf;
  return nullptr;
}

bool Migrator::has_table(const std::string& prefix) const {
  return std::any_of(leaves_.begin(), leaves_.end(),
                     [&](const Leaf& leaf) { return leaf.key.starts_with(prefix); });
}

Leaf* Migrator::take(std::string_view key) {
  Leaf* leaf = find(key);
  if (leaf != nullptr) leaf->used = true;
  return leaf;
}

std::vector<Leaf*> Migrator::take_table(std::string_view prefix) {
  std::vector<Leaf*> out;
  for (Leaf& leaf : leaves_)
    if (!leaf.used && leaf.key.starts_with(prefix)) out.push_back(&leaf);
  for (Leaf* leaf : out) leaf->used = true;
  return out;
}

void Migrator::drop(std::initializer_list<const char*> keys) {
  for (const char* key : keys) take(key);
}

void Migrator::drop_table(std::string_view prefix) {
  for (Leaf& leaf : leaves_) leaf.used = leaf.used || leaf.key.starts_with(prefix);
}

void Migrator::leave(std::string_view prefix, std::string_view row) {
  for (Leaf& leaf : leaves_) {
    if (leaf.used || !leaf.key.starts_with(prefix)) continue;
    leaf.used = true;
    if (!is_empty(leaf.value) && !is_false(leaf.value)) left(leaf, see(*find_foreign_whole(row)));
  }
}

std::optional<int64_t> Migrator::count(std::string_view key) {
  const Leaf* leaf = find(key);
  if (leaf == nullptr || leaf->value.kind != Value::Kind::integer) return std::nullopt;
  return leaf->value.integer;
}

void Migrator::set(const std::string& key, Value value, const Leaf& from, const std::string& why) {
  if (!knows(key))
    return left(from, "nothing that is found here has " +
                          (key.empty() ? "a key for it" : "the key " + key));
  if (auto [at, added] = set_.try_emplace(key, Set{std::move(value), &from, why});
      !added && at->second.from != &from)
    left(from, key + " is already set by " + at->second.from->key);
}

void Migrator::add(const std::string& list, std::vector<std::pair<std::string, Value>> keys,
                   const Leaf& from, const std::string& why, std::vector<Own> own) {
  std::ranges::stable_sort(own, {}, &Own::table);
  items_.push_back({list, std::move(keys), from, why, std::move(own)});
}

bool Migrator::reads(const std::string& table) const {
  return is_set(table + ".path") || std::ranges::any_of(items_, [&](const Item& item) {
           return item.list == sources_of(table);
         });
}

bool Migrator::set_fields(const std::string& table,
                          const std::map<std::string, std::string>& columns, const Leaf& from,
                          const std::string& why) {
  const std::string key = table + ".jsonl.fields";
  if (!knows(key)) return false;
  Value parts;
  for (const auto& [part, column] : columns) parts.entries.push_back({part, {}, Value(column)});
  set(key, std::move(parts), from, why);
  return true;
}

void Migrator::left(const Leaf& leaf, const std::string& why) {
  out_.left.push_back({leaf.key, leaf.place.line, shown(leaf.value), why});
}

void Migrator::assume(const std::string& key, Value value, const std::string& why) {
  assumptions_.push_back({{key, {}, std::move(value), true}, why});
}

void Migrator::want(const std::string& key, const std::string& text) {
  out_.missing.push_back({key, 0, "", text});
}

bool Migrator::is_default(const std::string& key, const Value& value) const {
  const meshwright_option* option = owner_of(key)->find(key.substr(key.rfind('.') + 1));
  if (option->default_value == nullptr) return false;
  const std::optional<Value> ours = parse_toml_value(option->default_value);
  return ours && (to_toml(*ours) == to_toml(value) ||
                  (is_number(*ours) && is_number(value) && as_number(*ours) == as_number(value)));
}

void Migrator::keep_assumptions() {
  for (const auto& [leaf, why] : assumptions_)
    if (!is_set(leaf.key) && knows(leaf.key) && !is_default(leaf.key, leaf.value))
      set_.emplace(leaf.key, Set{leaf.value, &leaf, why});
}

std::string Migrator::implied(const Leaf& leaf) const {
  return leaf.place.line == 0 ? out_.program + "'s default" : "";
}

void Migrator::saves(const Leaf* enable, const Leaf* every) {
  if (is_false(enable))
    set("checkpoint.every_steps", integer_value(0), *enable,
        enable->place.line == 0 ? implied(*enable) + "; the last step is always saved"
                                : "the last step is always saved");
  else if (every != nullptr)
    set("checkpoint.every_steps", every->value, *every);
}

void Migrator::validation(
    bool validates, std::initializer_list<std::pair<const char*, const char*>> theirs_and_ours) {
  for (const auto& [theirs, ours] : theirs_and_ours) {
    Leaf* leaf = take(theirs);
    if (leaf == nullptr) continue;
    if (validates)
      set(ours, leaf->value, *leaf);
    else
      left(*leaf, std::string("it is ") + ours + " once validation_dataset.path is set");
  }
}

std::string Migrator::strategy_of_class(const std::string& path) const {
  auto letters = [](std::string_view text) {
    std::string out;
    for (char c : text::normal(text))
      if (c != '_') out += c;
    return out;
  };
  std::string name = letters(path.substr(path.rfind('.') + 1)), best;
  size_t longest = 0;
  for (const StrategySchema& s : plugins_.strategies) {
    std::vector<std::string> names = s.aliases;
    names.push_back(s.strategy);
    for (const std::string& known : names)
      if (std::string word = letters(known); word.size() > longest && name.starts_with(word)) {
        longest = word.size();
        best = s.strategy;
      }
  }
  return best;
}

std::string Migrator::strategy_key(const std::string& option) {
  std::string strategy = "fsdp2";
  if (const Leaf* chosen = find("distributed.strategy"); chosen != nullptr)
    strategy = text::normal(chosen->value.text);
  for (const StrategySchema& s : plugins_.strategies)
    if (s.strategy == strategy && s.schema.find(option) != nullptr)
      return s.schema.table + "." + option;
  return {};
}

const OptionSchema* Migrator::owner_of(const std::string& key) const {
  size_t dot = key.rfind('.');
  for (const OptionSchema& schema : schemas_)
    if (dot != std::string::npos && schema.table == key.substr(0, dot) &&
        schema.find(key.substr(dot + 1)) != nullptr)
      return &schema;
  return nullptr;
}

std::string Migrator::same_name(const std::string& theirs) const {
  constexpr size_t kMost = 3;
  const std::string last = text::normal(theirs.substr(theirs.rfind('.') + 1));
  const bool validates = theirs.starts_with("valid");
  std::vector<std::string> keys, lesser;
  for (const OptionSchema& schema : schemas_) {
    if (schema.find(last) == nullptr) continue;
    const bool second = schema.table.starts_with("validation_") != validates ||
                        schema.table == "distributed.moe.mp_policy" || is_list(schema.table);
    (second ? lesser : keys).push_back(join_key(schema.table, last));
  }
  if (keys.empty()) keys = lesser;
  std::string out;
  for (size_t i = 0; i < std::min(keys.size(), kMost); ++i)
    out += (i == 0 ? "" : i + 1 < std::min(keys.size(), kMost) ? ", " : " or ") + keys[i];
  return out.empty() ? out : "see " + out + ", of the same name: not known in this table";
}

void Migrator::plain(Leaf& leaf) {
  leaf.used = true;
  const std::string here = placed(leaf.key);
  if (owner_of(here) != nullptr) return set(here, leaf.value, leaf, implied(leaf));
  if (here.starts_with("distributed.")) {
    // The flat form, and older names: the loader knows them, and the table they belong to.
    const std::string key = strategy_key(here.substr(here.rfind('.') + 1));
    if (!key.empty()) return set(key, leaf.value, leaf);
  }
  std::string last = leaf.key.substr(leaf.key.rfind('.') + 1);
  if (last == "_target_" || last == "_recursive_" || last == "_convert_")
    return left(leaf, "names Python code, which is not run here");
  const ForeignName* known = find_foreign_whole(leaf.key);
  const std::string same = same_name(leaf.key);
  if (known == nullptr && here != leaf.key && !same.empty()) return left(leaf, same);
  // Of a table that has a row of its own everything is answered by it, whatever the key is called.
  for (size_t dot = leaf.key.rfind('.'); known == nullptr && dot != std::string::npos && dot > 0;
       dot = leaf.key.rfind('.', dot - 1))
    known = find_foreign_whole(std::string_view(leaf.key).substr(0, dot));
  if (known == nullptr) known = find_foreign(leaf.key);
  if (known != nullptr) return carry(*known, leaf);
  if (is_empty(leaf.value)) return;  // nothing was asked for
  if (!same.empty()) return left(leaf, same);
  // One word, like "mode", is many things.
  if (last.find('_') != std::string::npos)
    if (const ForeignName* elsewhere = find_foreign_elsewhere(text::normal(last));
        elsewhere != nullptr && *elsewhere->key != '\0')
      return left(leaf, see(*elsewhere));
  std::vector<std::string> names;
  for (const OptionSchema& schema : schemas_)
    for (const meshwright_option* option : schema.options) names.push_back(key_of(schema, *option));
  std::string near = nearest_name(leaf.key, names);
  left(leaf, near.empty() ? "nothing here is known to correspond"
                          : "not known; the nearest key is " + near);
}

// Whether a name that is known in every table means the same in this one: "max_length" of a
// tokenizer's call is no length of samples.
bool Migrator::in_its_place(const ForeignName& known, const std::string& key) {
  const size_t dot = key.rfind('.');
  if (known.name == key || dot == std::string::npos) return true;
  const std::string table = key.substr(0, dot), ours = known.key;
  return table == ours.substr(0, ours.rfind('.')) || table == "training" || table == "trainer" ||
         table == "train" || table == "training_args";
}

void Migrator::carry(const ForeignName& known, Leaf& leaf) {
  if (is_empty(leaf.value) && known.carry != Carry::as_is) return;  // nothing was asked for
  const std::string key = known.key;
  if (key.empty() && is_false(leaf.value)) return;  // switched off there
  if (known.carry == Carry::told && is_false(leaf.value) && knows(key) &&
      is_default(key, leaf.value))
    return;  // and here
  const bool same = in_its_place(known, leaf.key);
  if (known.carry == Carry::as_is && same) return set(key, leaf.value, leaf, implied(leaf));
  if (known.carry == Carry::degree && same && leaf.value.kind == Value::Kind::integer)
    return set(key, leaf.value.integer < 1 ? Value("auto") : leaf.value, leaf);
  if (known.carry == Carry::seconds && same && is_number(leaf.value))
    return set(key, number_value(as_number(leaf.value) / 60), leaf);
  left(leaf, see(known));
}

template <class Visit>
void Migrator::each_set(Visit&& visit) const {
  for (const OptionSchema& schema : schemas_)
    for (const meshwright_option* option : schema.options)
      if (auto found = set_.find(schema.table + "." + option->name); found != set_.end())
        visit(schema, option->name, found->first, found->second);
}

std::string Migrator::tables() const {
  std::string text;
  const OptionSchema* current = nullptr;
  each_set([&](const OptionSchema& schema, const char* name, const std::string&, const Set& set) {
    if (current != &schema) text += "\n[" + schema.table + "]\n";
    current = &schema;
    text += std::string(name) + " = " + to_toml(set.value) + comment_of(set.why) + "\n";
  });
  for (const Item& item : items_) {
    text += "\n[[" + item.list + "]]" + comment_of(item.why) + "\n";
    for (const auto& [key, value] : item.keys) text += key + " = " + to_toml(value) + "\n";
    std::string table;
    for (const Own& own : item.own) {
      if (own.table != table) text += "\n[" + own.table + "]\n";
      table = own.table;
      text += own.key + " = " + to_toml(own.value) + comment_of(own.why) + "\n";
    }
  }
  return text;
}

// What the loader refuses is left out, with its words.
void Migrator::check() {
  for (size_t round = 0, most = set_.size() + 1; round < most; ++round) {
    Diagnostics diagnostics;
    LoadOptions options;
    options.environment = [](const std::string&) { return std::nullopt; };
    Source source = Source::parse(tables(), options, diagnostics);
    std::string strategy = text::normal(source.strategy());
    for (PluginSchemas::Component& one : plugins_.components) {
      const std::string& table = one.schema.table;  // "dataset.jsonl"
      const size_t dot = table.find('.');
      const std::string of = table.substr(0, dot), name = table.substr(dot + 1);
      one.active = source.component(of.c_str()) == name ||
                   (of != "model" &&
                    std::ranges::any_of(source_plugins(source, of),
                                        [&](const auto& plugin) { return plugin.first == name; }));
    }
    if (diagnostics.ok()) resolve(source, plugins_, strategy, diagnostics);
    if (diagnostics.ok()) return;
    bool removed = false;
    for (const Error& error : diagnostics.errors())
      for (auto it = set_.begin(); it != set_.end(); ++it)
        if (error.key() == it->first || error.key().starts_with(it->first + ".")) {
          left(*it->second.from, "not taken as " + it->first + " = " + shown(it->second.value) +
                                     ": " + error.message());
          set_.erase(it);
          removed = true;
          break;
        }
    if (removed) continue;
    for (const Error& error : diagnostics.errors()) want(error.key(), error.message());
    return;
  }
}

void Migrator::say_missing() {
  if (!is_set("model.config") && !is_set("model.pretrained"))
    want("model.config", "a Hugging Face config.json, or model.pretrained, a folder with weights");
  auto kind = set_.find("dataset.kind");
  bool mock = kind != set_.end() && kind->second.value.text == "mock";
  if (!reads("dataset") && !mock)
    want("dataset.path",
         "files of text or tokens on this machine, and dataset.kind; `meshwright tokenize` makes "
         "tokens");
  if (!is_set("step_scheduler.max_steps") && !is_set("step_scheduler.epochs"))
    want("step_scheduler.max_steps",
         "the length of the run in steps; 200 unless it is set, or step_scheduler.epochs");
}

void Migrator::account() {
  each_set([&](const OptionSchema&, const char*, const std::string& key, const Set& set) {
    const bool theirs = set.from->place.line > 0;
    Line line{set.from->key, set.from->place.line, theirs ? shown(set.from->value) : "not said",
              key + " = " + to_toml(set.value)};
    if (set.why.empty()) {
      out_.carried.push_back(std::move(line));
    } else {
      line.text += ": " + set.why;
      out_.guessed.push_back(std::move(line));
    }
  });
  for (const Item& item : items_) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : item.keys) keys.push_back(key + " = " + to_toml(value));
    Line line{item.from.key, item.from.place.line, shown(item.from.value),
              "[[" + item.list + "]] " + text::join(keys, ", ")};
    if (!item.why.empty()) line.text += ": " + item.why;
    (item.why.empty() ? out_.carried : out_.guessed).push_back(std::move(line));
    for (const Own& own : item.own)
      (own.why.empty() ? out_.carried : out_.guessed)
          .push_back({own.from.key, own.from.place.line, shown(own.from.value),
                      own.table + "." + own.key + " = " + to_toml(own.value) + " of " +
                          to_toml(item.keys.front().second) +
                          (own.why.empty() ? "" : ": " + own.why)});
  }
}

Migration Migrator::finish() {
  for (Leaf& leaf : leaves_)
    if (!leaf.used) plain(leaf);
  keep_assumptions();
  check();
  say_missing();
  account();
  std::string text = "# Made from a configuration of " + out_.program +
                     " by meshwright config migrate.\nschema = 1\n" + tables();
  if (!out_.missing.empty()) text += "\n# Still to be said:\n";
  for (const Line& line : out_.missing)
    text += "#   " + one_line(line.key + ": " + line.text) + "\n";
  if (!out_.left.empty()) text += "\n# Not carried over:\n";
  for (const Line& line : out_.left)
    text += "#   " + one_line(line.key + " = " + line.value + ": " + line.text) + "\n";
  out_.toml = std::move(text);
  return std::move(out_);
}

}  // namespace meshwright::config
