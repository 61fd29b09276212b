#include "engine/config/migrator.h"

#include "engine/config/describe.h"
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

std::string shown(const Value& value) { return shortened(to_toml(value), 80); }

}  // namespace

Migrator::Migrator(std::vector<Leaf> leaves, std::string program,
                   const std::vector<StrategySchema>& strategies)
    : leaves_(std::move(leaves)), strategies_(strategies), schemas_(all_schemas({strategies})) {
  out_.program = std::move(program);
}

void Migrator::add_default(const std::string& key, std::string_view toml) {
  if (find(key) == nullptr) leaves_.push_back({key, {}, *parse_toml_value(toml)});
}

Leaf* Migrator::find(std::string_view key) {
  for (Leaf& leaf : leaves_)
    if (leaf.key == key) return &leaf;
  return nullptr;
}

Leaf* Migrator::take(std::string_view key) {
  Leaf* leaf = find(key);
  if (leaf != nullptr) leaf->used = true;
  return leaf;
}

void Migrator::set(const std::string& key, Value value, const Leaf& from, const std::string& why) {
  if (auto [at, added] = set_.try_emplace(key, Set{std::move(value), &from, why});
      !added && at->second.from != &from)
    left(from, key + " is already set by " + at->second.from->key);
}

void Migrator::left(const Leaf& leaf, const std::string& why) {
  out_.left.push_back({leaf.key, leaf.place.line, shown(leaf.value), why});
}

std::string Migrator::implied(const Leaf& leaf) const {
  return leaf.place.line == 0 ? out_.program + "'s default" : "";
}

void Migrator::saves(const Leaf* enable, const Leaf* every) {
  if (enable != nullptr && enable->value.kind == Value::Kind::boolean && !enable->value.boolean)
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
  for (const StrategySchema& s : strategies_) {
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

const OptionSchema* Migrator::owner_of(const std::string& key) const {
  size_t dot = key.rfind('.');
  for (const OptionSchema& schema : schemas_)
    if (dot != std::string::npos && schema.table == key.substr(0, dot) &&
        schema.find(key.substr(dot + 1)) != nullptr)
      return &schema;
  return nullptr;
}

void Migrator::plain(Leaf& leaf) {
  leaf.used = true;
  if (owner_of(leaf.key) != nullptr) return set(leaf.key, leaf.value, leaf, implied(leaf));
  if (leaf.key.starts_with("distributed.")) {
    // The flat form, and older names: the loader knows them, and the table they belong to.
    std::string name = leaf.key.substr(leaf.key.rfind('.') + 1), strategy = "fsdp2";
    if (const Leaf* chosen = find("distributed.strategy"); chosen != nullptr)
      strategy = text::normal(chosen->value.text);
    for (const StrategySchema& s : strategies_)
      if (s.strategy == strategy && s.schema.find(name) != nullptr)
        return set(s.schema.table + "." + name, leaf.value, leaf);
  }
  std::string last = leaf.key.substr(leaf.key.rfind('.') + 1);
  if (last == "_target_" || last == "_recursive_" || last == "_convert_")
    return left(leaf, "names Python code, which is not run here");
  const ForeignName* known = find_foreign(leaf.key);
  if (known == nullptr)
    known = find_foreign(std::string_view(leaf.key).substr(0, leaf.key.find('.')));
  if (known == nullptr) {
    std::vector<std::string> names;
    for (const OptionSchema& schema : schemas_)
      for (const meshwright_option* option : schema.options)
        names.push_back(schema.table + "." + option->name);
    std::string near = nearest_name(leaf.key, names);
    return left(leaf, near.empty() ? "nothing here is known to correspond"
                                   : "not known; the nearest key is " + near);
  }
  carry(*known, leaf);
}

void Migrator::carry(const ForeignName& known, Leaf& leaf) {
  if (is_empty(leaf.value) && known.carry != Carry::as_is) return;  // nothing was asked for
  std::string note = known.note, key = known.key;
  if (key.empty() && leaf.value.kind == Value::Kind::boolean && !leaf.value.boolean)
    return;  // switched off there
  if (known.carry == Carry::as_is) return set(key, leaf.value, leaf, implied(leaf));
  if (known.carry == Carry::lower) {
    leaf.value.text = text::normal(leaf.value.text);
    return set(key, leaf.value, leaf);
  }
  if (known.carry == Carry::degree && leaf.value.kind == Value::Kind::integer)
    return set(key, leaf.value.integer < 1 ? Value("auto") : leaf.value, leaf);
  if (known.carry == Carry::seconds && is_number(leaf.value))
    return set(key, number_value(as_number(leaf.value) / 60), leaf);
  left(leaf, key.empty() ? note : "see " + key + (note.empty() ? "" : ": " + note));
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
    text += std::string(name) + " = " + to_toml(set.value) +
            (set.why.empty() ? "" : "  # guessed: " + one_line(set.why)) + "\n";
  });
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
    if (diagnostics.ok()) resolve(source, strategies_, strategy, diagnostics);
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
    for (const Error& error : diagnostics.errors())
      out_.missing.push_back({error.key(), 0, "", error.message()});
    return;
  }
}

void Migrator::say_missing() {
  if (!set_.contains("model.config") && !set_.contains("model.pretrained"))
    out_.missing.push_back(
        {"model.config", 0, "",
         "a Hugging Face config.json, or model.pretrained, a folder with weights"});
  auto kind = set_.find("dataset.kind");
  bool mock = kind != set_.end() && kind->second.value.text == "mock";
  if (!set_.contains("dataset.path") && !mock)
    out_.missing.push_back({"dataset.path", 0, "",
                            "files of text or tokens on this machine, and dataset.kind; "
                            "`meshwright tokenize` makes tokens"});
  if (!set_.contains("step_scheduler.max_steps"))
    out_.missing.push_back(
        {"step_scheduler.max_steps", 0, "",
         "the length of the run in steps; 200 unless it is set, or step_scheduler.epochs"});
}

void Migrator::account() {
  each_set([&](const OptionSchema&, const char*, const std::string& key, const Set& set) {
    bool theirs = set.from->place.line > 0;
    Line line{set.from->key, set.from->place.line, theirs ? shown(set.from->value) : "not said",
              key + " = " + to_toml(set.value)};
    if (set.why.empty()) {
      out_.carried.push_back(std::move(line));
    } else {
      line.text += ": " + set.why;
      out_.guessed.push_back(std::move(line));
    }
  });
}

Migration Migrator::finish() {
  for (Leaf& leaf : leaves_)
    if (!leaf.used) plain(leaf);
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
