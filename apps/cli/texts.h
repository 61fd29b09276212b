// Text files as the arguments of a verb.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/cli/verb.h"
#include "sdk/text/corpus/walk.h"

namespace meshwright::cli {

// What the positionals name: files, folders and patterns, each sorted by name. Throws when nothing
// with contents is there: "nothing to DO: ...".
std::vector<std::string> text_files(const Call& call, std::string_view to_do);
int64_t bytes_of(const std::vector<std::string>& files);

// Refuses a call of this verb without one of these flags, each with what it takes: {"out", "FOLDER,
// where the tokenizer is written"}. `example`: a whole command.
void want_flags(const Call& call, const std::string& verb,
                std::initializer_list<std::pair<const char*, const char*>> flags,
                const std::string& example);

// --documents, --text-key and --threads.
struct TextOptions {
  tokenizer::Documents documents = tokenizer::Documents::files;
  std::string text_key = "text";
  int threads = 1;
};
TextOptions text_options(const Call& call);

// "12 ms", and from a second on as a duration.
std::string time_taken(double seconds);

}  // namespace meshwright::cli
