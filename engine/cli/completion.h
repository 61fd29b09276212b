// What shells complete and what `man` shows, made from the verbs' own tables like the help.
#pragma once

#include <string>

#include "engine/cli/verb.h"

namespace meshwright::cli {

std::string bash_completion();
std::string zsh_completion();
// The page of one verb, meshwright-plan(1), and that of the program, meshwright(1).
std::string manual_page(const Verb& verb);
std::string program_manual_page();

}  // namespace meshwright::cli
