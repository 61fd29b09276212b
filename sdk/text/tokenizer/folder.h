// Which file of a folder its tokenizer is in.
#pragma once

#include <boost/json/fwd.hpp>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace meshwright::tokenizer {

// The first of these that is there counts: Hugging Face's own file, Mistral's, and sentencepiece
// models under the names that their classes give them.
inline constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json", "tekken.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"};
// What is missing in a folder that has none of them.
inline constexpr const char* kNoTokenizer = "has no tokenizer.json, tokenizer.model or tekken.json";

inline std::optional<std::filesystem::path> tokenizer_file(const std::filesystem::path& folder) {
  std::error_code failed;
  for (const char* name : kTokenizerFiles)
    if (std::filesystem::exists(folder / name, failed)) return folder / name;
  return std::nullopt;
}

// What `bytes`, all of `file`, are as a tokenizer.json, if the file's name says that they are none:
// *.model, with what tokenizer_config.json beside it says of it, and tekken*.json. Throws
// Error(bad_tokenizer).
std::optional<boost::json::value> of_other_file(const std::filesystem::path& file,
                                                std::string_view bytes);

}  // namespace meshwright::tokenizer
