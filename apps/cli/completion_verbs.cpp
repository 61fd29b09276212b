// completion and man: what `make install` puts beside the program, and what one without it wants.
#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value_from.hpp>
#include <filesystem>
#include <span>
#include <string>

#include "apps/cli/verb.h"
#include "engine/config/describe.h"
#include "meshwright/abi.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/words.h"

namespace meshwright::cli {

// What shells complete and what `man` shows, made from the verbs' own tables like the help.
namespace {

// Whether a file's name follows, by the word that the help has for it.
bool takes_files(std::string_view argument) {
  for (const char* word :
       {"FILE", "FOLDER", "DIR", "RUN", ".toml", ".bin", "PATH", "PLUGIN", "A", "B"})
    if (argument == word ||
        (std::string_view(word).size() > 1 && argument.find(word) != argument.npos))
      return true;
  return false;
}

std::vector<Flag> flags_of(const Verb& verb) {
  std::vector<Flag> out;
  for (const Flag& flag : verb.flags)
    if (!flag.hidden) out.push_back(flag);
  out.push_back(shared_flag("color"));
  out.push_back(shared_flag("help"));
  return out;
}

// First words of verbs, each once, in the order of the help.
std::vector<std::string> first_words() {
  std::vector<std::string> out;
  for (const Verb& verb : verbs()) {
    std::string word = verb.name.substr(0, verb.name.find(' '));
    if (std::find(out.begin(), out.end(), word) == out.end()) out.push_back(std::move(word));
  }
  return out;
}

std::vector<std::string> choices(const Positional& one) {
  return one.name == "VERB" ? first_words() : one.choices;
}
bool takes_keys(const Positional& one) { return one.name.starts_with("KEY"); }

// The engine's keys; those of plugins come and go.
std::vector<std::string> keys() {
  std::vector<std::string> out;
  for (const OptionSchema& schema : config::all_schemas({})) {
    // --set gives a list as a whole.
    if (config::is_list(schema.table)) {
      out.push_back(schema.table);
      continue;
    }
    for (const meshwright_option* option : schema.options)
      out.push_back(config::key_of(schema, *option));
  }
  return out;
}

std::vector<const Verb*> group(const std::string& word) {
  std::vector<const Verb*> out;
  for (const Verb& verb : verbs())
    if (verb.name.starts_with(word + " ")) out.push_back(&verb);
  return out;
}

std::string second_word(const Verb& verb) { return verb.name.substr(verb.name.find(' ') + 1); }

bool wants_files(const Verb& verb) {
  return std::any_of(verb.positionals.begin(), verb.positionals.end(),
                     [](const Positional& one) { return takes_files(one.name); });
}

}  // namespace

std::string bash_completion() {
  std::string out = "# Completion of meshwright " MESHWRIGHT_VERSION
                    " for bash: meshwright completion bash\n"
                    "_meshwright() {\n"
                    "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
                    "  local first='' second='' words='' files='' i keys='" +
                    text::join(keys(), " ") +
                    "'\n"
                    "  COMPREPLY=()\n"
                    "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
                    "    case ${COMP_WORDS[i]} in\n"
                    "      --color) ((i++)) ;;\n"
                    "      -*) [ -n \"$first\" ] && break ;;\n"
                    "      *) if [ -z \"$first\" ]; then first=${COMP_WORDS[i]}; else "
                    "second=${COMP_WORDS[i]}; break; "
                    "fi ;;\n"
                    "    esac\n"
                    "  done\n"
                    "  case $first in\n"
                    "    '') words='" +
                    text::join(first_words(), " ") + " --help --version --color' ;;\n";
  for (const std::string& word : first_words()) {
    const std::vector<const Verb*> inside = group(word);
    if (inside.empty()) continue;
    std::vector<std::string> names;
    for (const Verb* verb : inside) names.push_back(second_word(*verb));
    out += "    " + word + ") [ -z \"$second\" ] && words='" + text::join(names, " ") +
           " --help' ;;\n";
  }
  out += "  esac\n  case \"$first $second\" in\n";
  for (const Verb& verb : verbs()) {
    std::vector<std::string> names, file_flags, other_flags;
    std::string by_choice;
    for (const Flag& flag : flags_of(verb)) {
      names.push_back("--" + flag.name);
      if (flag.argument.empty()) continue;
      if (flag.argument == "KEY=VALUE")
        by_choice += "        --" + flag.name +
                     ") compopt -o nospace 2>/dev/null; COMPREPLY=($(compgen -S = -W \"$keys\" -- "
                     "\"$cur\")); return ;;\n";
      else if (const auto list = flag.choices; !list.empty())
        by_choice += "        --" + flag.name + ") COMPREPLY=($(compgen -W '" +
                     text::join(list, " ") + "' -- \"$cur\")); return ;;\n";
      else
        (takes_files(flag.argument) ? file_flags : other_flags).push_back("--" + flag.name);
    }
    const bool two_words = verb.name.find(' ') != std::string::npos;
    out += "    '" + verb.name + (two_words ? "'" : " '*") + ")\n      case $prev in\n" + by_choice;
    if (!file_flags.empty())
      out +=
          "        " + text::join(file_flags, "|") +
          ") compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n";
    if (!other_flags.empty()) out += "        " + text::join(other_flags, "|") + ") return ;;\n";
    for (const Positional& one : verb.positionals)
      for (std::string& word : choices(one)) names.push_back(std::move(word));
    const bool with_keys =
        std::any_of(verb.positionals.begin(), verb.positionals.end(), takes_keys);
    out += "      esac\n      words='" + text::join(names, " ") + "'" +
           (with_keys ? "\" $keys\"" : "") + (wants_files(verb) ? " files=1" : "") + " ;;\n";
  }
  return out +
         "  esac\n"
         "  if [[ $cur == -* || -z $files ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
         "  else\n"
         "    compopt -o filenames 2>/dev/null\n"
         "    COMPREPLY=($(compgen -f -- \"$cur\"))\n"
         "  fi\n"
         "}\n"
         "complete -F _meshwright meshwright\n";
}

namespace {

// Within single quotes; in _arguments brackets and colons are signs.
std::string zsh_text(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '\'')
      out += "'\\''";
    else if (c == '[' || c == ']' || c == ':' || c == '\\')
      out += std::string("\\") + c;
    else
      out += c;
  }
  return out;
}

std::string zsh_action(std::string_view argument, const std::vector<std::string>& list) {
  if (argument == "KEY=VALUE") return "{compadd -S \"\" -- ${^keys}=}";
  if (!list.empty()) return "(" + text::join(list, " ") + ")";
  return takes_files(argument) ? "_files" : " ";
}

std::string zsh_verb(const Verb& verb, const std::string& indent) {
  std::string out = "_arguments -s";
  for (const Flag& flag : flags_of(verb)) {
    out += " \\\n" + indent + "  '";
    if (flag.repeats) out += "*";
    out += "--" + flag.name + "[" + zsh_text(flag.doc) + "]";
    if (!flag.argument.empty())
      out += ":" + zsh_text(flag.argument) + ":" + zsh_action(flag.argument, flag.choices);
    out += "'";
  }
  for (size_t i = 0; i < verb.positionals.size(); ++i) {
    const Positional& one = verb.positionals[i];
    out += " \\\n" + indent + "  '" + (one.repeats ? std::string("*") : std::to_string(i + 1)) +
           (one.required || one.repeats ? ":" : "::") + zsh_text(one.name) + ":" +
           (takes_keys(one) ? "{compadd -- $keys}" : zsh_action(one.name, choices(one))) + "'";
  }
  return out;
}

std::string described(const std::vector<std::pair<std::string, std::string>>& words) {
  std::string out;
  for (const auto& [word, summary] : words) out += " '" + word + ":" + zsh_text(summary) + "'";
  return out;
}

}  // namespace

std::string zsh_completion() {
  std::vector<std::pair<std::string, std::string>> tops;
  for (const std::string& word : first_words()) {
    std::string summary = "verbs of " + word;
    for (const Verb& verb : verbs())
      if (verb.name == word) summary = verb.summary;
    tops.emplace_back(word, summary);
  }
  std::string out =
      "#compdef meshwright\n"
      "# Completion of meshwright " MESHWRIGHT_VERSION
      " for zsh: meshwright completion zsh\n"
      "_meshwright() {\n"
      "  local -a verbs keys\n"
      "  keys=(" +
      text::join(keys(), " ") +
      ")\n"
      "  if (( CURRENT == 2 )); then\n"
      "    verbs=(" +
      described(tops) +
      ")\n"
      "    _describe -t verbs verb verbs\n"
      "    return\n"
      "  fi\n"
      "  case $words[2] in\n";
  for (const std::string& word : first_words()) {
    const std::vector<const Verb*> inside = group(word);
    out += "    " + word + ")\n";
    if (inside.empty()) {
      for (const Verb& verb : verbs())
        if (verb.name == word)
          out += "      shift words; (( CURRENT-- ))\n      " + zsh_verb(verb, "      ") + " ;;\n";
      continue;
    }
    std::vector<std::pair<std::string, std::string>> names;
    for (const Verb* verb : inside) names.emplace_back(second_word(*verb), verb->summary);
    out += "      if (( CURRENT == 3 )); then\n        verbs=(" + described(names) +
           ")\n        _describe -t verbs verb verbs\n        return\n      fi\n"
           "      local second=$words[3]\n      shift 2 words; (( CURRENT -= 2 ))\n"
           "      case $second in\n";
    for (const Verb* verb : inside)
      out += "        " + second_word(*verb) + ")\n          " + zsh_verb(*verb, "          ") +
             " ;;\n";
    out += "      esac ;;\n";
  }
  return out +
         "  esac\n"
         "}\n"
         "if [[ $funcstack[1] == _meshwright ]]; then _meshwright \"$@\"; else compdef _meshwright "
         "meshwright; fi\n";
}

namespace {

// A line of text must not begin as a request, and a minus is no hyphen.
std::string roff(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n'))
      out += std::string("\\&") + c;
    else
      out += c;
  }
  return out;
}

// Paragraphs as the help wraps them: a line that ends no sentence goes on in the next, one that
// starts with a space is kept.
std::string roff_paragraphs(const std::string& details) {
  std::string out;
  bool kept = false, fresh = true;
  for (const std::string& line : text::split(details, '\n')) {
    const bool example = line.starts_with(' ');
    if (example != kept) out += example ? ".PP\n.nf\n" : ".fi\n";
    if (example != kept && !example) fresh = true;
    kept = example;
    if (line.empty()) {
      fresh = true;
      continue;
    }
    if (fresh && !example) out += ".PP\n";
    fresh = false;
    out += roff(example ? "    " + std::string(text::trim(line)) : line) + "\n";
    if (!example && (line.ends_with('.') || line.ends_with(':'))) fresh = true;
  }
  return out + (kept ? ".fi\n" : "");
}

std::string roff_flags(const std::vector<Flag>& flags) {
  std::string out;
  for (const Flag& flag : flags) {
    out += ".TP\n.B " + std::string(flag.name == "help" ? "\\-h, " : "") + roff("--" + flag.name);
    if (!flag.argument.empty()) out += " " + roff(flag.argument);
    out += "\n" + roff(flag.doc) + "\n";
  }
  return out;
}

std::string page_name(const Verb& verb) {
  std::string out = "meshwright-" + verb.name;
  std::replace(out.begin(), out.end(), ' ', '-');
  return out;
}

std::string title(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return ".TH " + roff(name) + " 1 \"\" \"meshwright " MESHWRIGHT_VERSION "\" \"Meshwright\"\n";
}

std::string arguments_of(const Verb& verb) {
  std::string out;
  for (const Positional& one : verb.positionals)
    out += std::string(" ") + (one.required ? "" : "[") + roff(one.name) +
           (one.repeats ? "..." : "") + (one.required ? "" : "]");
  return out;
}

}  // namespace

// The page of one verb, meshwright-plan(1), and that of the program, meshwright(1).
std::string manual_page(const Verb& verb) {
  return title(page_name(verb)) + ".SH NAME\n" + roff(page_name(verb)) + " \\- " +
         roff(verb.summary) + "\n.SH SYNOPSIS\n.B meshwright " + roff(verb.name) + "\n" +
         (verb.positionals.empty() ? "" : ".I" + arguments_of(verb) + "\n") + "[flags]\n" +
         (verb.details.empty() ? "" : ".SH DESCRIPTION\n" + roff_paragraphs(verb.details)) +
         ".SH OPTIONS\n" + roff_flags(flags_of(verb)) + ".SH SEE ALSO\n.BR meshwright (1)\n";
}

std::string program_manual_page() {
  std::string out =
      title("meshwright") +
      ".SH NAME\nmeshwright \\- plan and run distributed training on LibTorch\n"
      ".SH SYNOPSIS\n.B meshwright\n.I verb\n.RI [ argument ...]\n.RI [ flags ]\n"
      ".SH DESCRIPTION\nPlans a training job on paper, checks it, trains it on one or more ranks, "
      "and\ngenerates from what was trained. Each verb has a page of its own, which\n.B "
      "meshwright\n"
      ".I verb\n.B \\-\\-help\nshows too.\n.SH VERBS\n";
  for (const Verb& verb : verbs())
    out += ".TP\n.B " + roff(verb.name) + arguments_of(verb) + "\n" + roff(verb.summary) +
           ":\n.BR " + roff(page_name(verb)) + " (1)\n";
  return out + ".SH OPTIONS\n" +
         roff_flags({shared_flag("help"), shared_flag("version"), shared_flag("color")}) +
         ".SH FILES\n.TP\n.I lib/meshwright/torch\nBeside the program's folder: the torch folder "
         "of "
         "LibTorch's wheel, or a link to\nit. Planning does without.\n.TP\n.I "
         "~/.local/share/meshwright/plugins\nPlugins of your own.\n"
         ".SH ENVIRONMENT\n.TP\n.B LD_LIBRARY_PATH\nAnother place of LibTorch's libraries.\n.TP\n"
         ".B MESHWRIGHT_PLUGIN_PATH\nFolders with plugins.\n.TP\n.B NO_COLOR\nNo colours.\n"
         ".SH EXIT STATUS\n0 fine, 1 a defect of the program, 2 a mistake in the file or on the "
         "command\nline, 3 a job that cannot be, 4 ranks or devices, 5 numerics, 6 a collective\n"
         "failed, 7 data, weights or checkpoints, 75 told to end and saved, 128+n by\nsignal n.\n";
}

namespace {

namespace fs = std::filesystem;

int run_completion(Call& call) {
  const std::string shell = call.positional(0);
  if (shell != "bash" && shell != "zsh")
    throw Error(ErrorCode::usage, "completion is made for bash and zsh, not for " + shell)
        .help("meshwright completion bash")
        .help("meshwright completion zsh");
  const std::string script = shell == "bash" ? bash_completion() : zsh_completion();
  if (call.json)
    call.print_json({{"shell", shell}, {"script", script}});
  else
    call.out.write_data(script);
  return 0;
}

// A verb as programs read it: what there is to complete, to check and to call.
boost::json::object described(const Verb& verb) {
  boost::json::array positionals, flags;
  for (const Positional& one : verb.positionals)
    positionals.push_back({{"name", one.name},
                           {"required", one.required},
                           {"repeats", one.repeats},
                           {"choices", boost::json::value_from(one.choices)}});
  for (const Flag& flag : verb.flags)
    if (!flag.hidden)
      flags.push_back({{"name", flag.name},
                       {"argument", flag.argument},
                       {"repeats", flag.repeats},
                       {"choices", boost::json::value_from(flag.choices)},
                       {"meaning", flag.doc}});
  return {{"verb", verb.name},
          {"summary", verb.summary},
          {"details", verb.details},
          {"positionals", positionals},
          {"flags", flags}};
}

void print(Call& call, std::span<const Verb> some, const std::string& page) {
  if (!call.json) {
    call.out.write_data(page);
    return;
  }
  boost::json::array all;
  for (const Verb& verb : some) all.push_back(described(verb));
  call.print_json({{"verbs", all}});
}

int run_man(Call& call) {
  if (call.has("dir")) {
    const fs::path folder = call.value("dir");
    base::make_folders(folder);
    auto put = [&](std::string name, const std::string& page) {
      for (char& c : name)
        if (c == ' ') c = '-';
      base::write_durably(folder / (name + ".1"), page);
    };
    put("meshwright", program_manual_page());
    for (const Verb& verb : verbs()) put("meshwright-" + verb.name, manual_page(verb));
    return 0;
  }
  std::string name;
  for (const std::string& word : call.positionals) name += (name.empty() ? "" : " ") + word;
  if (name.empty()) return print(call, verbs(), program_manual_page()), 0;
  std::vector<std::string> names;
  for (const Verb& verb : verbs()) {
    if (verb.name == name) return print(call, {&verb, 1}, manual_page(verb)), 0;
    names.push_back(verb.name);
  }
  std::string inside;
  for (const std::string& other : names)
    if (other.starts_with(name + " ")) inside += (inside.empty() ? "" : ", ") + other;
  if (!inside.empty())
    throw Error(ErrorCode::usage, name + " is several verbs: " + inside)
        .help("meshwright man " + inside.substr(0, inside.find(',')));
  Error error(ErrorCode::usage, "no such verb: " + name);
  if (std::string near = nearest_name(name, names); !near.empty())
    error.help("did you mean meshwright man " + near + "?");
  throw error.help("meshwright -h lists the verbs");
}

}  // namespace

Verb completion_verb() {
  return declare(run_completion, R"(
completion SHELL=bash|zsh
Print what makes a shell complete verbs, flags, keys and files

SHELL is bash or zsh. An installed meshwright has both in their places already.

  source <(meshwright completion bash)
  meshwright completion zsh > ~/.zfunc/_meshwright

--json
)");
}

Verb man_verb() {
  return declare(run_man, R"(
man [VERB...]
Print a manual page: of the program, or of one verb

What man shows of an installed meshwright: man meshwright-train.

  meshwright man checkpoint ls | man -l -

--dir FOLDER  Write the pages of the program and of every verb into this folder instead.
--json
)");
}

}  // namespace meshwright::cli
