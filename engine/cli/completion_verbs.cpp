// completion and man: what `make install` puts beside the program, and what one without it wants.
#include <filesystem>

#include "engine/base/durable.h"
#include "engine/cli/completion.h"

namespace meshwright::cli {
namespace {

namespace fs = std::filesystem;

int run_completion(Call& call) {
  const std::string shell = call.positional(0);
  if (shell != "bash" && shell != "zsh")
    throw Error(ErrorCode::usage, "completion is made for bash and zsh, not for " + shell)
        .help("meshwright completion bash")
        .help("meshwright completion zsh");
  call.out.write(shell == "bash" ? bash_completion() : zsh_completion());
  return 0;
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
  if (name.empty()) return call.out.write(program_manual_page()), 0;
  std::vector<std::string> names;
  for (const Verb& verb : verbs()) {
    if (verb.name == name) return call.out.write(manual_page(verb)), 0;
    names.push_back(verb.name);
  }
  Error error(ErrorCode::usage, "no such verb: " + name);
  if (std::string near = nearest_name(name, names); !near.empty())
    error.help("did you mean meshwright man " + near + "?");
  throw error.help("meshwright -h lists the verbs");
}

}  // namespace

Verb completion_verb() {
  return declare(run_completion, R"(
completion SHELL
Print what makes a shell complete verbs, flags and files

SHELL is bash or zsh. An installed meshwright has both in their places already.

  source <(meshwright completion bash)
  meshwright completion zsh > ~/.zfunc/_meshwright
)");
}

Verb man_verb() {
  return declare(run_man, R"(
man [VERB...]
Print a manual page: of the program, or of one verb

What man shows of an installed meshwright: man meshwright-train.

  meshwright man checkpoint ls | man -l -

--dir FOLDER  Write the pages of the program and of every verb into this folder instead.
)");
}

}  // namespace meshwright::cli
