// What a configuration of another program goes through on its way to ours: its keys are looked up
// and taken one by one, values are set under our keys, and the result is checked by the loader
// itself. Each program has a file of its own, which says what the table of foreign.cpp cannot:
// values that depend on others, and defaults of that program.
#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/config/foreign.h"
#include "engine/config/migrate.h"
#include "engine/config/toml_value.h"

namespace meshwright::config {

// A key of the other file.
struct Leaf {
  std::string key;  // dotted
  Place place;      // line 0: a default of the other program
  Value value;
  bool used = false;
};

inline bool is_number(const Value& v) {
  return v.kind == Value::Kind::integer || v.kind == Value::Kind::number;
}
inline bool is_true(const Value& v) { return v.kind == Value::Kind::boolean && v.boolean; }
inline bool is_empty(const Value& v) {
  return v.kind == Value::Kind::string && (v.text.empty() || v.text == "none");
}

class Migrator {
 public:
  using Choice = std::optional<Value>;

  Migrator(std::vector<Leaf> leaves, std::string program,
           const std::vector<StrategySchema>& strategies);

  // What the program does when its file does not say so; before anything is looked up.
  void add_default(const std::string& key, std::string_view toml);

  Leaf* find(std::string_view key);
  // The leaf, which then counts as dealt with.
  Leaf* take(std::string_view key);
  // Where two keys of theirs are one of ours, the first one counts. `why`: it is a guess.
  void set(const std::string& key, Value value, const Leaf& from, const std::string& why = {});
  bool is_set(const std::string& key) const { return set_.contains(key); }
  void unset(const std::string& key) { set_.erase(key); }
  void left(const Leaf& leaf, const std::string& why);
  // Why a value counts as a guess that the file does not say; empty when it says it.
  std::string implied(const Leaf& leaf) const;

  // choose(value): what it is here, or nothing. `why` for a value that is a guess.
  template <class Choose>
  void choose(const char* theirs, const char* ours, Choose&& choose, const std::string& why = {}) {
    Leaf* leaf = take(theirs);
    if (leaf == nullptr) return;
    Choice value = choose(leaf->value);
    if (value)
      set(ours, std::move(*value), *leaf, why.empty() ? implied(*leaf) : why);
    else if (!is_empty(leaf->value))
      left(*leaf, std::string("no counterpart for this value; see ") + ours);
  }
  // Whether checkpoints are saved, and how often; either may be nullptr.
  void saves(const Leaf* enable, const Leaf* every);
  // Their key and ours, for keys that only count where there is validation data.
  void validation(bool validates,
                  std::initializer_list<std::pair<const char*, const char*>> theirs_and_ours);
  // The strategy whose name, or another name of it, a class like FSDP2Manager begins with; empty:
  // none.
  std::string strategy_of_class(const std::string& path) const;

  // Carries over what nobody took, checks the result and writes it.
  Migration finish();

 private:
  struct Set {
    Value value;
    const Leaf* from;
    std::string why;  // not empty: a guess
  };

  // What has the same name here, or stands in the table of names.
  void plain(Leaf& leaf);
  void carry(const ForeignName& known, Leaf& leaf);
  const OptionSchema* owner_of(const std::string& key) const;
  // visit(schema, option's name, key, what it is set to), in the order of the documentation.
  template <class Visit>
  void each_set(Visit&& visit) const;
  // The tables of what is set, with the reasons of guesses.
  std::string tables() const;
  void check();
  void say_missing();
  // Lists what is set as carried over or guessed.
  void account();

  std::vector<Leaf> leaves_;
  const std::vector<StrategySchema>& strategies_;
  std::vector<OptionSchema> schemas_;
  std::map<std::string, Set> set_;
  Migration out_;
};

// One file a program.
void from_torchtitan(Migrator& migrator);
void from_automodel(Migrator& migrator);

}  // namespace meshwright::config
