// How a verb of the program is described and called. A verb is a .cpp of its own, declared by its
// help, and one line in the table of verb.cpp; parsing, help and error output are the same for
// all.
//
//   int run_env(Call& call) { call.out.write("...\n"); return 0; }
//   Verb env_verb() {
//     return declare(run_env, R"(
//   env
//   Show versions, machine and plugin places
//
//   What to put into a bug report.
//
//   --json
//   )");
//   }
#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/error.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::config {
class Reading;
}

namespace meshwright::cli {

struct Flag {
  std::string name;           // "world-size"
  std::string argument = {};  // "N"; empty: a switch
  std::string doc = {};
  std::vector<std::string> choices = {};  // of the argument; empty: not a few words
  bool repeats = false;
  bool hidden = false;  // for the program's own use: not in the help
};

struct Positional {
  std::string name;  // "FILE"
  bool required = true;
  bool repeats = false;  // the last one: any number of them, or at least one when it is required
  std::vector<std::string> choices = {};  // as a flag's
};

// A parsed command line and where to print. stdout carries what was asked for, stderr all that is
// said about it.
struct Call {
  std::map<std::string, std::vector<std::string>> flags =
      {};  // given flags only; a switch has no values
  std::vector<std::string> positionals = {};
  bool json = false;
  bool quiet = false;                 // say() says nothing: another rank does
  std::string command = {};           // that continues the run, where it is not the one given
  std::optional<Error> failure = {};  // the first that fail() printed
  // FILE and --set, where the verb has read them once and for all (source_of()).
  std::shared_ptr<const config::Reading> reading = {};
  report::Output& out;
  report::Output& err;
  report::Style out_style, err_style;

  bool has(const std::string& flag) const { return flags.count(flag) != 0; }
  std::string value(const std::string& flag,
                    const std::string& fallback = {}) const;  // the last one given
  std::vector<std::string> values(const std::string& flag) const;
  // Throws Error(usage) unless the value is an integer of at least `least`.
  std::optional<int64_t> number(const std::string& flag, int64_t least) const;
  // nullopt unless the value is a finite number.
  std::optional<double> finite(const std::string& flag) const;
  std::string positional(size_t index) const {
    return index < positionals.size() ? positionals[index] : std::string();
  }

  void print_json(const boost::json::value& value) { out.write(report::pretty_json(value)); }
  // One notice, at once.
  void notice(const std::string& text);
  // Prints notices and warnings to stderr, each once.
  void say(const Diagnostics& diagnostics);
  // Prints all errors (stderr; as JSON to stdout with --json), with their number when several; the
  // exit status of the first.
  int fail(std::span<const Error> errors);
};

struct Verb {
  std::string name;          // "plan", "plugins list"
  std::string summary;       // one line for the list of verbs
  std::string details = {};  // paragraphs and examples for -h
  std::vector<Positional> positionals = {};
  std::vector<Flag> flags = {};  // beside -h and --color
  int (*run)(Call& call) = nullptr;
};

// A verb as its help has it:
//
//   NAME and what follows it: FILE, [FILE] when it may be left out, FILE... when it repeats
//   the line that the list of verbs has
//
//   paragraphs, which a line that ends in a full stop or a colon ends; examples two spaces in
//
//   --flag            a switch, and what it does; a line that starts with a space goes on with that
//   --flag N          a flag with an argument
//   --flag SORT=a|b   one whose argument is one of these words, as a positional's may be
//   --flag KEY=N...   one that may be given several times
//   --json            without a text: one of the flags that several verbs have
Verb declare(int (*run)(Call& call), std::string_view help);
// A flag that several verbs have.
const Flag& shared_flag(std::string_view name);

// Every verb, in the order of the help.
const std::vector<Verb>& verbs();

Verb quickstart_verb();
Verb train_verb();
Verb plan_verb();
Verb prove_verb();
Verb validate_verb();
Verb config_show_verb();
Verb config_schema_verb();
Verb config_explain_verb();
Verb config_new_verb();
Verb config_migrate_verb();
Verb plugins_list_verb();
Verb plugins_inspect_verb();
Verb plugins_check_verb();
Verb plugins_new_verb();
Verb checkpoint_ls_verb();
Verb checkpoint_verify_verb();
Verb checkpoint_export_verb();
Verb checkpoint_diff_verb();
Verb checkpoint_now_verb();
Verb generate_verb();
Verb chat_verb();
Verb evaluate_verb();
Verb tokenize_verb();
Verb tokenizer_train_verb();
Verb dataset_show_verb();
Verb dataset_stats_verb();
Verb report_verb();
Verb completion_verb();
Verb man_verb();
Verb env_verb();
Verb cmake_dir_verb();
Verb doctor_verb();
Verb calibrate_verb();

// Runs the program; never throws. argv as main() has it.
int run(int argc, const char* const* argv);

// What was meant by a flag or a word that a verb does not have: names are looked for among the
// flags of all verbs, the keys of the configuration and what other programs call them.

// `given`: "--learning_rate", of `arguments`, where its value stands too.
Error unknown_flag(const Verb& verb, const std::string& given,
                   const std::vector<std::string>& arguments);
// A positional "optimizer.lr=1e-4", which other programs take as a setting; nothing for other
// words.
std::optional<Error> setting_as_word(const Verb& verb, const std::string& word);
// "--set optimizer.lr 1e-4", of which the second word became one of the positionals.
std::optional<Error> setting_in_two_words(const Verb& verb,
                                          const std::vector<std::string>& arguments,
                                          const std::vector<std::string>& positionals);

}  // namespace meshwright::cli
