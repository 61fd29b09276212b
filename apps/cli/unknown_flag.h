// What was meant by a flag or a word that a verb does not have: names are looked for among the
// flags of all verbs, the keys of the configuration and what other programs call them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/cli/verb.h"

namespace meshwright::cli {

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
