// completion and man: what `make install` puts beside the program, and what one without it wants.
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value_from.hpp>
#include <filesystem>
#include <span>

#include "engine/cli/completion.h"
#include "sdk/files/durable.h"

namespace meshwright::cli {
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
