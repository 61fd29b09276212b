// What a configuration of another program goes through on its way to ours: its keys are looked up
// and taken one by one, values are set under our keys, and the result is checked by the loader
// itself. Each program has a file of its own, which says what the table of foreign.cpp cannot:
// values that depend on others, and defaults of that program.
#pragma once

#include <deque>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/migrate/migrate.h"
#include "engine/config/foreign.h"
#include "engine/config/toml_value.h"

namespace meshwright::config {

// A key of the other file.
struct Leaf {
  std::string key;  // dotted, as it is written there
  Place place;      // line 0: a default of the other program
  Value value;
  bool used = false;
};

inline Value list_of(std::vector<Value> items) {
  Value out;
  out.kind = Value::Kind::list;
  out.items = std::move(items);
  return out;
}
// The items of a list, or what stands in place of a list of one.
inline std::vector<Value> items_of(const Value& v) {
  return v.kind == Value::Kind::list ? v.items : std::vector{v};
}
inline bool is_number(const Value& v) {
  return v.kind == Value::Kind::integer || v.kind == Value::Kind::number;
}
inline bool is_true(const Value& v) { return v.kind == Value::Kind::boolean && v.boolean; }
inline bool is_false(const Value& v) { return v.kind == Value::Kind::boolean && !v.boolean; }
inline bool is_empty(const Value& v) {
  return v.kind == Value::Kind::string && (v.text.empty() || v.text == "none");
}
// The same of a leaf that may not be there.
inline bool is_number(const Leaf* leaf) { return leaf != nullptr && is_number(leaf->value); }
inline bool is_integer(const Leaf* leaf) {
  return leaf != nullptr && leaf->value.kind == Value::Kind::integer;
}
inline bool is_true(const Leaf* leaf) { return leaf != nullptr && is_true(leaf->value); }
inline bool is_false(const Leaf* leaf) { return leaf != nullptr && is_false(leaf->value); }
inline bool is_said(const Leaf* leaf) { return leaf != nullptr && !is_empty(leaf->value); }
inline bool is_text(const Leaf* leaf) {
  return is_said(leaf) && leaf->value.kind == Value::Kind::string;
}

// 0.1 * 3e-4 as a person writes it, without the last digit of a binary product.
Value product(double a, double b);

class Migrator {
 public:
  using Choice = std::optional<Value>;

  Migrator(std::vector<Leaf> leaves, std::string program, PluginSchemas plugins);

  // What the program does when its file does not say so; before anything is looked up.
  void add_default(const std::string& key, std::string_view toml);

  // The leaf of this key, of one in another table that is ours here, or of one that foreign.cpp has
  // in the same row: an older name.
  Leaf* find(std::string_view key);
  bool has_table(const std::string& prefix) const;  // whether a key begins with it
  // The leaf, which then counts as dealt with.
  Leaf* take(std::string_view key);
  // All leaves that nobody has dealt with and that begin so; they count as dealt with.
  std::vector<Leaf*> take_table(std::string_view prefix);
  // Takes what says nothing more, without a word.
  void drop(std::initializer_list<const char*> keys);
  void drop_table(std::string_view prefix);
  // Leaves what begins alike, with the words of that row of foreign.cpp.
  void leave(std::string_view prefix, std::string_view row);
  // An integer that the file says, or that is added as a default; nothing for "none" and words.
  std::optional<int64_t> count(std::string_view key);
  // Where two keys of theirs are one of ours, the first one counts. `why`: it is a guess.
  void set(const std::string& key, Value value, const Leaf& from, const std::string& why = {});
  bool is_set(const std::string& key) const { return set_.contains(key); }
  // A key of a table below an item of a list, [dataset.mix.jsonl]; `why`: it is a guess.
  struct Own {
    std::string table, key;
    Value value;
    Leaf from;
    std::string why = {};
  };
  // One table more of a list, [[dataset.mix]], with its keys in this order, and with those of
  // tables below itself, which stand in the order of their names.
  void add(const std::string& list, std::vector<std::pair<std::string, Value>> keys,
           const Leaf& from, const std::string& why, std::vector<Own> own = {});
  // Whether [dataset] or [validation_dataset] names data.
  bool reads(const std::string& table) const;
  void unset(const std::string& key) { set_.erase(key); }
  void left(const Leaf& leaf, const std::string& why);
  // What the other program does where its file says nothing, under our key; `why` says so. Counts
  // only where nothing else sets the key, and where our default is another.
  void assume(const std::string& key, Value value, const std::string& why);
  // What is still to be said before it can train.
  void want(const std::string& key, const std::string& text);
  // Why a value counts as a guess that the file does not say; empty when it says it.
  std::string implied(const Leaf& leaf) const;

  // choose(value): what it is here, or nothing. `why` for a value that is a guess.
  template <class Choose>
  void choose(const char* theirs, const char* ours, Choose&& choose, const std::string& why = {}) {
    Leaf* leaf = find(theirs);
    if (leaf == nullptr || leaf->used) return;  // nothing to say, or said
    leaf->used = true;
    Choice value = choose(leaf->value);
    if (value)
      set(ours, std::move(*value), *leaf, why.empty() ? implied(*leaf) : why);
    else if (!is_empty(leaf->value))
      left(*leaf, std::string("no counterpart for this value; see ") + ours);
  }
  // The key of an option in the table of the strategy that the file chooses; empty: it has no such
  // option.
  std::string strategy_key(const std::string& option);
  bool knows(const std::string& key) const { return owner_of(key) != nullptr; }
  // Whether checkpoints are saved, and how often; either may be nullptr.
  void saves(const Leaf* enable, const Leaf* every);
  // Their key and ours, for keys that only count where there is validation data.
  void validation(bool validates,
                  std::initializer_list<std::pair<const char*, const char*>> theirs_and_ours);
  // The strategy whose name, or another name of it, a class like FSDP2Manager begins with; empty:
  // none.
  std::string strategy_of_class(const std::string& path) const;

  // Which columns are which parts of a row, in that table of [dataset] or [validation_dataset];
  // false: there is no key for it here.
  bool set_fields(const std::string& table, const std::map<std::string, std::string>& columns,
                  const Leaf& from, const std::string& why = {});

  // Carries over what nobody took, checks the result and writes it.
  Migration finish();

 private:
  struct Set {
    Value value;
    const Leaf* from;
    std::string why;  // not empty: a guess
  };

  struct Item {
    std::string list;
    std::vector<std::pair<std::string, Value>> keys;
    Leaf from;
    std::string why;
    std::vector<Own> own;
  };

  // What has the same name here, or stands in the table of names.
  void plain(Leaf& leaf);
  void carry(const ForeignName& known, Leaf& leaf);
  static bool in_its_place(const ForeignName& known, const std::string& key);
  // "see" and our keys that end like one of theirs; empty: none does.
  std::string same_name(const std::string& theirs) const;
  void keep_assumptions();
  bool is_default(const std::string& key, const Value& value) const;
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
  // Our keys, with the reasons; set_ points to those that count.
  std::deque<std::pair<Leaf, std::string>> assumptions_;
  PluginSchemas plugins_;
  std::vector<OptionSchema> schemas_;
  std::map<std::string, Set> set_;
  std::vector<Item> items_;  // of lists, those of one behind each other
  Migration out_;
};

// Names of models and data. Something of this machine comes before a name on the hub.

// "meta-llama/Llama-3.2-1B", a name on the hub, as the folder into which it is downloaded; a path
// as it is, and whatever is found here counts as one.
std::string local_folder(const std::string& name);
// What to do about a name on the hub; empty for a path.
std::string download(const std::string& name);
// A file or folder of this machine, as programs tell them from names of data on the hub.
bool is_path(const std::string& text);
inline constexpr const char* kDataOfHub =
    "data of the hub is not read: save its rows as JSON Lines (messages, "
    "prompt and completion, or text)";

// One file a program.
void from_torchtitan(Migrator& migrator);
void from_automodel(Migrator& migrator);
void from_axolotl(Migrator& migrator);
void from_trl(Migrator& migrator);

}  // namespace meshwright::config
