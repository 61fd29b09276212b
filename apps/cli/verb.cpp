#include "apps/cli/verb.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "apps/cli/common.h"
#include "engine/config/describe.h"
#include "engine/config/foreign.h"
#include "engine/config/toml_value.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/shell_word.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/used_up.h"
#include "sdk/base/words.h"

namespace meshwright::cli {

const std::vector<Verb>& verbs() {
  static const std::vector<Verb> table = {
      quickstart_verb(),
      train_verb(),
      plan_verb(),
      prove_verb(),
      validate_verb(),
      config_show_verb(),
      config_schema_verb(),
      config_explain_verb(),
      config_new_verb(),
      config_migrate_verb(),
      plugins_list_verb(),
      plugins_inspect_verb(),
      plugins_check_verb(),
      plugins_new_verb(),
      checkpoint_ls_verb(),
      checkpoint_verify_verb(),
      checkpoint_export_verb(),
      checkpoint_diff_verb(),
      checkpoint_now_verb(),
      generate_verb(),
      chat_verb(),
      evaluate_verb(),
      tokenize_verb(),
      tokenizer_train_verb(),
      dataset_show_verb(),
      dataset_stats_verb(),
      report_verb(),
      completion_verb(),
      man_verb(),
      env_verb(),
      cmake_dir_verb(),
      doctor_verb(),
      calibrate_verb(),
  };
  return table;
}

std::string Call::value(const std::string& flag, const std::string& fallback) const {
  auto it = flags.find(flag);
  return it == flags.end() || it->second.empty() ? fallback : it->second.back();
}

std::vector<std::string> Call::values(const std::string& flag) const {
  auto it = flags.find(flag);
  return it == flags.end() ? std::vector<std::string>() : it->second;
}

std::optional<int64_t> Call::number(const std::string& flag, int64_t least) const {
  if (!has(flag)) return std::nullopt;
  std::string text = value(flag);
  int64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least)
    throw Error(ErrorCode::usage, "--" + flag + " wants an integer of at least " +
                                      std::to_string(least) + ", found \"" + text + "\"")
        .help("--" + flag + " " + std::to_string(least));
  return number;
}

std::optional<double> Call::finite(const std::string& flag) const {
  std::string text = value(flag);
  double number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && std::isfinite(number) ? std::optional(number) : std::nullopt;
}

void Call::notice(const std::string& text) {
  Diagnostics one;
  one.notice(text);
  say(one);
}

void Call::say(const Diagnostics& diagnostics) {
  if (quiet) return;
  std::set<std::string> said;
  for (const std::string& text : diagnostics.notices())
    if (said.insert(text).second) err.write(report::format_notice(err_style, text));
  for (const std::string& text : diagnostics.warnings())
    if (said.insert(text).second) err.write(report::format_warning(err_style, text));
  err.flush();
}

int Call::fail(std::span<const Error> given) {
  std::vector<Error> errors = detail::by_cause(given);
  // Where relative paths begin: every file of such a path is "not there".
  std::error_code gone;
  if (static_cast<void>(std::filesystem::current_path(gone)); gone && !errors.empty())
    errors.front().help(
        "the folder that this program was started in has been removed: start it in "
        "one that is there");
  std::string retries = errors.empty() ? "" : report::last_words_for_torchrun(errors.front());
  if (!errors.empty() && !failure) failure = errors.front();
  if (json) {
    print_json(report::errors_json(errors));
  } else {
    for (size_t i = 0; i < errors.size(); ++i)
      err.write((i > 0 ? "\n" : "") + report::format_error(err_style, errors[i]));
    if (errors.size() > 1)
      err.write('\n' + report::counted(static_cast<int64_t>(errors.size()), "error", "errors") +
                '\n');
    if (!retries.empty()) err.write(report::format_notice(err_style, retries));
    err.flush();
  }
  return errors.empty() ? 0 : exit_status(errors.front().code());
}

// Reads the help that a verb is declared by.

namespace {

constexpr std::string_view kSharedFlags = R"(
--help              Show this.
--version           Show the version.
--color WHEN=auto|always|never
                    auto (only on a terminal, without NO_COLOR), always or never.
--json              Print JSON for machines; errors too.
--set KEY=VALUE...  Override any key of the file, for example distributed.tp_size=2. Repeatable.
--world-size N      Number of ranks. Default: WORLD_SIZE of the environment, else 1.
)";

bool take_suffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

// "SHELL=bash|zsh": the words, which are taken from it.
std::vector<std::string> take_choices(std::string& name) {
  const size_t begin = name.find('=');
  if (begin == name.npos || name.find('|', begin) == name.npos) return {};
  std::vector<std::string> out = text::split(std::string_view(name).substr(begin + 1), '|');
  name.resize(begin);
  return out;
}

// "FOLDER", "[FOLDER]", "FILES..."
Positional positional_of(std::string_view word) {
  Positional out;
  out.required = !word.starts_with('[');
  if (!out.required) word = word.substr(1, word.size() - 2);
  out.repeats = take_suffix(word, "...");
  out.name = word;
  out.choices = take_choices(out.name);
  return out;
}

// "--shard-size SIZE  Most bytes of one file."
Flag flag_of(std::string_view line) {
  line.remove_prefix(2);
  size_t gap = std::min(line.find("  "), line.size());
  std::string_view head = line.substr(0, gap);
  Flag out;
  out.doc = text::trim(line.substr(gap));
  out.repeats = take_suffix(head, "...");
  size_t space = std::min(head.find(' '), head.size());
  out.name = head.substr(0, space);
  out.argument = text::trim(head.substr(space));
  out.choices = take_choices(out.argument);
  return out;
}

std::vector<Flag> flags_in(const std::vector<std::string>& lines) {
  std::vector<Flag> out;
  for (const std::string& line : lines)
    if (line.starts_with("--"))
      out.push_back(flag_of(line));
    else if (line.starts_with(' '))
      out.back().doc += (out.back().doc.empty() ? "" : " ") + std::string(text::trim(line));
  return out;
}

}  // namespace

const Flag& shared_flag(std::string_view name) {
  static const std::vector<Flag> all = flags_in(text::split(kSharedFlags, '\n'));
  for (const Flag& flag : all)
    if (flag.name == name) return flag;
  throw Error(ErrorCode::internal, "no text says what --" + std::string(name) + " does");
}

Verb declare(int (*run)(Call& call), std::string_view help) {
  std::vector<std::string> lines = text::split(text::trim(help), '\n');
  Verb verb;
  verb.run = run;
  for (const std::string& word : text::split(lines.at(0), ' '))
    if (word[0] >= 'a' && word[0] <= 'z')
      verb.name += (verb.name.empty() ? "" : " ") + word;
    else
      verb.positionals.push_back(positional_of(word));
  verb.summary = lines.at(1);
  auto flags = std::find_if(lines.begin() + 2, lines.end(),
                            [](const std::string& line) { return line.starts_with("--"); });
  auto begin = lines.begin() + 2, end = flags;
  while (begin != end && begin->empty()) ++begin;
  while (begin != end && std::prev(end)->empty()) --end;
  verb.details = text::join(std::span(begin, end), "\n");
  for (const Flag& flag : flags_in({flags, lines.end()}))
    verb.flags.push_back(flag.doc.empty() ? shared_flag(flag.name) : flag);
  return verb;
}

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

std::string with_value(const Flag& flag, const std::string& value) {
  std::string out = "--" + flag.name;
  if (!flag.argument.empty())
    out += " " + (value.empty() ? flag.argument : text::shell_word(value));
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
      const std::string key = config::key_of(schema, *option);
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
    return "--set " + text::shell_word(key + "=" + (what.empty() ? "VALUE" : what));
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
          .help("--set " + text::shell_word(arguments[i + 1] + "=" + arguments[i + 2]));
  return std::nullopt;
}

}  // namespace meshwright::cli
