// A tokenizer_config.json, which lies beside a tokenizer.json: which tokens play which part, and
// how a conversation is written down.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace meshwright::tokenizer {

struct ChatTemplate {
  std::string name;  // "default" where the file holds one template and no list
  std::string text;
};

struct TokenizerConfig {
  // "eos_token" -> "<|im_end|>": bos, eos, unk, sep, pad, cls and mask, and whatever else the file
  // has under a key that ends in _token. Those that are null are left out.
  std::map<std::string, std::string> special_tokens;
  std::vector<std::string> additional_special_tokens;
  std::vector<ChatTemplate> chat_templates;  // in the file's order, no name twice

  // None where the file has no such key.
  std::optional<std::string> special_token(const std::string& key) const;
  const ChatTemplate* chat_template(std::string_view name = "default") const;
};

// A file that is not there is an empty one. Throws Error(bad_tokenizer) that names file and place.
TokenizerConfig read_tokenizer_config(const std::filesystem::path& file);
// `name` stands for the file in messages.
TokenizerConfig parse_tokenizer_config(std::string_view json, const std::string& name);

}  // namespace meshwright::tokenizer
