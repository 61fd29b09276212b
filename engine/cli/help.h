// The help texts, made from the verbs' descriptions.
#pragma once

#include <string>
#include <string_view>

#include "engine/cli/verb.h"

namespace meshwright::cli {

std::string program_help(const report::Style& style);
std::string group_help(const report::Style& style, std::string_view group);  // "plugins", "config"
std::string verb_help(const report::Style& style, const Verb& verb);
// "meshwright plan [FILE] [--world-size N] ..."
std::string usage_line(const Verb& verb);

}  // namespace meshwright::cli
