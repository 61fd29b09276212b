#include "apps/cli/unknown_flag.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "apps/cli/common.h"
#include "engine/config/describe.h"
#include "engine/config/foreign.h"
#include "engine/config/toml_value.h"
#include "engine/config/unknown_key.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"

namespace meshwright::cli {
namespace {

// What other programs call flags of ours; '-' and '_' are the same. Where the flag is another
// verb's, that verb is told.
struct FlagElsewhere {
  const char *theirs, *ours;
  bool same_value = true;
};
constexpr FlagElsewhere kFlagsElsewhere[] = {{"max_new_tokens", "max-new"},
                                             {"max_tokens", "max-new"},
                                             {"n_predict", "max-new"},
                                             {"max_length", "max-new"},
                                             {"temp", "temperature"},
                                             {"nproc_per_node", "nproc"},
                                             {"num_processes", "nproc"},
                                             {"num_gpus", "nproc"},
                                             {"gpus", "nproc"},
                                             {"np", "nproc"},
                                             {"n_gpus", "nproc"},
                                             {"nnodes", "world-size"},
                                             {"limit", "samples"},
                                             {"max_samples", "samples"},
                                             {"num_samples", "samples"},
                                             {"do_sample", "temperature", false},
                                             {"batch_size", "batch"},
                                             {"eval_batch_size", "batch"},
                                             {"input", "prompt"},
                                             {"lora", "adapter"},
                                             {"peft", "adapter"},
                                             {"output", "out"},
                                             {"output_dir", "out"},
                                             {"overrides", "set"},
                                             {"override", "set"}};

const Flag* flag_of(const Verb& verb, const std::string& name) {
  for (const Flag& flag : verb.flags)
    if (!flag.hidden && text::normal(flag.name) == text::normal(name)) return &flag;
  return nullptr;
}

bool sets_keys(const Verb& verb) { return flag_of(verb, "set") != nullptr; }

// As a word of a shell's command line.
std::string quoted(const std::string& word) {
  const bool plain = std::all_of(word.begin(), word.end(), [](char c) {
    return text::is_alphanumeric(c) ||
           std::string_view("_-./=,:+%@").find(c) != std::string_view::npos;
  });
  return plain ? word : "'" + word + "'";
}

std::string with_value(const Flag& flag, const std::string& value) {
  std::string out = "--" + flag.name;
  if (!flag.argument.empty()) out += " " + (value.empty() ? flag.argument : quoted(value));
  return out;
}

// The value that a person wrote behind the flag; empty: none.
std::string value_behind(const std::string& given, const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].starts_with(given + "=")) return arguments[i].substr(given.size() + 1);
    if (arguments[i] == given && i + 1 < arguments.size() && !arguments[i + 1].starts_with("--"))
      return arguments[i + 1];
  }
  return {};
}

// Whether the key is a switch, which a flag without a value puts on.
bool is_switch(const std::string& key, const config::PluginSchemas& plugins) {
  const size_t dot = key.rfind('.');
  for (const OptionSchema& schema : config::all_schemas(plugins))
    if (dot != std::string::npos && schema.table == key.substr(0, dot))
      if (const meshwright_option* option = schema.find(key.substr(dot + 1)))
        return option->type == MESHWRIGHT_BOOL;
  return false;
}

// Keys of the configuration that a name stands for: the key itself, or the one table's that has it.
// The data's before the validation's, which is set up alike, and the table's before a list's.
std::string key_named(const std::string& name, const config::PluginSchemas& plugins) {
  std::vector<std::string> keys;
  for (const OptionSchema& schema : config::all_schemas(plugins))
    for (const meshwright_option* option : schema.options) {
      const std::string key =
          schema.table.empty() ? std::string(option->name) : schema.table + "." + option->name;
      if (key == name) return key;
      if (option->name == name && !schema.table.starts_with("validation_") &&
          !config::is_list(schema.table))
        keys.push_back(key);
    }
  return keys.size() == 1 ? keys[0] : std::string();
}

// What a flag without a value stands for, where the words about it begin with that: "\"float16\";
// ...", "\"cpu\" for true".
std::string value_of_switch(std::string_view note) {
  if (!note.starts_with('"')) return {};
  const size_t end = note.find('"', 1);
  const std::string_view then = note.substr(end + 1);
  const bool one = then.starts_with(';') || then.starts_with(',') || then.starts_with(" for true");
  return std::string(one ? note.substr(1, end - 1) : "");
}

// "--set optimizer.lr=1e-4" for a name of ours or of another program; empty: neither knows it.
std::string setting_for(const std::string& name, const std::string& value) {
  loader::Registry registry({});
  const config::PluginSchemas plugins = discovered_schemas(registry);
  const std::string like = text::normal(name);
  auto set = [](const std::string& key, const std::string& what) {
    return "--set " + quoted(key + "=" + (what.empty() ? "VALUE" : what));
  };
  if (const std::string key = key_named(like, plugins); !key.empty()) return set(key, value);
  const config::ForeignName* known = config::find_foreign(like);
  for (size_t dot = like.rfind('.'); known == nullptr && dot != std::string::npos && dot > 0;
       dot = like.rfind('.', dot - 1))
    known = config::find_foreign_whole(std::string_view(like).substr(0, dot));
  if (known == nullptr) known = config::find_foreign_elsewhere(like);
  if (known != nullptr && *known->key == '\0')
    return name + " has no counterpart here: " + known->note;
  if (known != nullptr) {
    const bool same = known->carry == config::Carry::as_is || known->carry == config::Carry::degree;
    const std::string given =
        is_switch(known->key, plugins) ? "true" : value_of_switch(known->note);
    return set(known->key, same && !value.empty() ? value : given) +
           (*known->note == '\0' ? "" : std::string(": ") + known->note);
  }
  // A table that others have it in: training.lr.
  if (const size_t dot = like.rfind('.'); dot != std::string::npos)
    if (const std::string key = key_named(like.substr(dot + 1), plugins); !key.empty())
      return set(key, value);
  return {};
}

// Helps for a name that the verb does not know; none where nothing is called so.
std::vector<std::string> meant(const Verb& verb, const std::string& name,
                               const std::string& value) {
  std::string flag = text::normal(name);
  bool same_value = true;
  for (const FlagElsewhere& elsewhere : kFlagsElsewhere)
    if (flag == elsewhere.theirs) {
      flag = elsewhere.ours;
      same_value = elsewhere.same_value;
      break;
    }
  const std::string taken = same_value ? value : "";
  if (const Flag* here = flag_of(verb, flag)) return {with_value(*here, taken)};
  std::vector<std::string> out;
  const std::string set = setting_for(name, value);
  if (!set.empty() && (!set.starts_with("--set") || sets_keys(verb)))
    out.push_back(set);
  else if (!set.empty())
    out.push_back("it is a key of the configuration, for verbs that take one: " + set);
  for (const Verb& other : verbs())
    if (const Flag* there = set.empty() ? flag_of(other, flag) : nullptr;
        there != nullptr && out.size() < 3)
      out.push_back("meshwright " + other.name + " has " + with_value(*there, taken));
  return out;
}

}  // namespace

Error unknown_flag(const Verb& verb, const std::string& option,
                   const std::vector<std::string>& arguments) {
  const std::string given = option.substr(0, option.find('='));
  Error error(ErrorCode::usage, "meshwright " + verb.name + " has no flag " + given);
  const std::string name = given.substr(std::min(given.find_first_not_of('-'), given.size()));
  std::vector<std::string> names = {"--help", "--color"};
  for (const Flag& flag : verb.flags)
    if (!flag.hidden) names.push_back("--" + flag.name);
  std::vector<std::string> helps = meant(verb, name, value_behind(given, arguments));
  if (helps.empty() || !helps[0].starts_with("--"))
    if (std::string near = nearest_name(given, names); !near.empty())
      helps.insert(helps.begin(), "did you mean " + near + "?");
  for (std::string& help : helps) error.help(std::move(help));
  return error.help("meshwright " + verb.name + " -h lists its flags");
}

std::optional<Error> setting_as_word(const Verb& verb, const std::string& word) {
  const size_t equals = word.find('=');
  std::error_code failed;
  if (!sets_keys(verb) || equals == std::string::npos || equals == 0 || word.find('/') < equals ||
      std::filesystem::exists(word, failed))
    return std::nullopt;
  // Hydra's "+key=value" adds a key.
  const size_t begin = word.starts_with('+') ? 1 : 0;
  const std::string set = setting_for(word.substr(begin, equals - begin), word.substr(equals + 1));
  if (set.empty()) return std::nullopt;
  return Error(ErrorCode::usage,
               "meshwright " + verb.name + " takes settings behind --set: \"" + word + "\"")
      .help(set);
}

std::optional<Error> setting_in_two_words(const Verb& verb,
                                          const std::vector<std::string>& arguments,
                                          const std::vector<std::string>& positionals) {
  for (size_t i = 0; i + 2 < arguments.size(); ++i)
    if (arguments[i] == "--set" && arguments[i + 1].find('=') == std::string::npos &&
        std::find(positionals.begin(), positionals.end(), arguments[i + 2]) != positionals.end())
      return Error(ErrorCode::usage, "meshwright " + verb.name +
                                         " takes a setting as one word: \"" + arguments[i + 1] +
                                         "\" \"" + arguments[i + 2] + "\"")
          .help("--set " + quoted(arguments[i + 1] + "=" + arguments[i + 2]));
  return std::nullopt;
}

}  // namespace meshwright::cli
