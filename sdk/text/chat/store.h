// The chat templates of a Hugging Face folder, and which of them a row gets.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "meshwright/error.h"
#include "sdk/text/chat/chat_template.h"

namespace meshwright::chat {

// Does not change once read; several threads may use it at once.
class Store {
 public:
  // chat_template.jinja with additional_chat_templates/NAME.jinja, which hide
  // `chat_template` of tokenizer_config.json (a string, or a list of {name, template}). A folder
  // without any gives an empty store. Throws Error(bad_template) for a damaged
  // tokenizer_config.json; a template that does not parse is an error once it is chosen.
  static Store read(const std::filesystem::path& folder);
  // "" is read(folder); else the file of that path, else the template of that name in the folder,
  // else the built-in "chatml". `key`: the setting that `requested` comes from, for messages.
  // Throws Error(bad_template) with the names.
  static Store open(const std::filesystem::path& folder, const std::string& requested,
                    const std::string& key = "chat_template");
  static Store of_text(const std::string& text, const std::string& name);

  bool empty() const { return templates_.empty(); }
  std::vector<std::string> names() const;
  // Name and text of each.
  std::vector<std::pair<std::string, std::string>> texts() const;
  // The only one; of several "tool_use" if the row has tools (an empty list is one, as for
  // transformers), else "default". Throws Error(bad_template) with the names if neither is there,
  // and without any template at all.
  const ChatTemplate& choose(bool has_tools) const;

  // {"bos_token", "<s>"}, ...: the special tokens of tokenizer_config.json (special_tokens_map.json
  // has a say where it is silent), in their order, for Request::special_tokens.
  const std::vector<std::pair<std::string, std::string>>& special_tokens() const {
    return special_tokens_;
  }

 private:
  struct Known {
    std::string text;
    std::variant<ChatTemplate, Error> parsed;
  };
  void add(const std::string& name, const std::string& text, const std::string& shown);
  void read_tokens(const std::filesystem::path& folder, const Value& config);

  std::map<std::string, Known> templates_;
  std::vector<std::pair<std::string, std::string>> special_tokens_;
  std::string folder_, key_ = "chat_template";
};

}  // namespace meshwright::chat
