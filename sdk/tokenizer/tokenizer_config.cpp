#include "sdk/tokenizer/tokenizer_config.h"

#include <algorithm>
#include <boost/json/value.hpp>
#include <system_error>

#include "meshwright/error.h"
#include "sdk/files/mapped_file.h"
#include "sdk/files/strict_json.h"
#include "sdk/tokenizer/fields.h"

namespace meshwright::tokenizer {

namespace {

namespace json = boost::json;

constexpr int64_t kMaxConfig = 64 << 20;
constexpr std::string_view kKnown[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};

[[noreturn]] void refuse_config(const std::string& file, const std::string& place,
                                const std::string& what) {
  throw Error(ErrorCode::bad_tokenizer, file + ": " + place + " " + what)
      .help(
          "AutoTokenizer.from_pretrained(...).save_pretrained(...) writes this file beside "
          "tokenizer.json: fetch or write it again");
}

std::string_view view(const json::string& text) { return {text.data(), text.size()}; }

// A token is a string or an object with its content.
const json::string* content_of(const json::value& value) {
  if (const json::object* object = value.if_object()) {
    const json::value* content = object->if_contains("content");
    return content != nullptr ? content->if_string() : nullptr;
  }
  return value.if_string();
}

std::string token_at(const std::string& file, const std::string& place, const json::value& value) {
  const json::string* content = content_of(value);
  if (content == nullptr)
    refuse_config(file, place,
                  "must be a string, or an object whose content is one, not " +
                      std::string(json::to_string(value.kind())) +
                      (value.is_object() ? " without it" : ""));
  return std::string(view(*content));
}

const json::array& list_at(const std::string& file, const std::string& place,
                           const json::value& value, const char* wanted) {
  if (!value.is_array())
    refuse_config(
        file, place,
        std::string("must be ") + wanted + ", not " + std::string(json::to_string(value.kind())));
  return value.get_array();
}

std::vector<ChatTemplate> templates_at(const std::string& file, const json::value& value) {
  if (const json::string* one = value.if_string()) return {{"default", std::string(view(*one))}};
  std::vector<ChatTemplate> out;
  for (const json::value& item : list_at(file, "chat_template", value,
                                         "a string, or a list of objects with name and template")) {
    std::string place = "chat_template[" + std::to_string(out.size()) + "]";
    auto text = [&](const char* key) {
      const json::object* object = item.if_object();
      const json::value* found = object != nullptr ? object->if_contains(key) : nullptr;
      if (found == nullptr || !found->is_string())
        refuse_config(file, place, std::string("has no string \"") + key + "\"");
      return std::string(view(found->get_string()));
    };
    ChatTemplate one{text("name"), text("template")};
    if (std::any_of(out.begin(), out.end(),
                    [&](const ChatTemplate& it) { return it.name == one.name; }))
      refuse_config(file, place, "is called " + shown(one.name) + ", as an earlier one");
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace

std::optional<std::string> TokenizerConfig::special_token(const std::string& key) const {
  auto it = special_tokens.find(key);
  return it == special_tokens.end() ? std::nullopt : std::optional(it->second);
}

const ChatTemplate* TokenizerConfig::chat_template(std::string_view name) const {
  auto it = std::find_if(chat_templates.begin(), chat_templates.end(),
                         [&](const ChatTemplate& one) { return one.name == name; });
  return it == chat_templates.end() ? nullptr : &*it;
}

TokenizerConfig parse_tokenizer_config(std::string_view text, const std::string& name) {
  json::value parsed;
  try {
    parsed = base::parse_strictly(text, {.depth = 24, .elements = 1 << 20});
  } catch (const base::JsonProblem& problem) {
    refuse_config(name, "the file",
                  problem.what + " (at byte " + std::to_string(problem.offset) + ")");
  }
  const json::object* root = parsed.if_object();
  if (root == nullptr)
    refuse_config(name, "the file",
                  "must be an object, not " + std::string(json::to_string(parsed.kind())));
  TokenizerConfig out;
  for (const auto& entry : *root) {
    std::string key(entry.key().data(), entry.key().size());
    const json::value& value = entry.value();
    if (value.is_null()) continue;
    if (std::find(std::begin(kKnown), std::end(kKnown), key) != std::end(kKnown)) {
      out.special_tokens[key] = token_at(name, key, value);
    } else if (key == "additional_special_tokens") {
      for (const json::value& token : list_at(name, key, value, "a list"))
        out.additional_special_tokens.push_back(token_at(
            name, key + "[" + std::to_string(out.additional_special_tokens.size()) + "]", token));
    } else if (key == "chat_template") {
      out.chat_templates = templates_at(name, value);
    } else if (key.ends_with("_token")) {
      // A model's own, image_token say; others of the name are switches: add_bos_token.
      if (const json::string* content = content_of(value))
        out.special_tokens[key] = std::string(view(*content));
    }
  }
  return out;
}

TokenizerConfig read_tokenizer_config(const std::filesystem::path& file) {
  std::error_code failed;
  if (!std::filesystem::exists(file, failed) && !failed) return {};
  base::MappedFile bytes(file.string(), ErrorCode::bad_tokenizer);
  if (bytes.size() > kMaxConfig) refuse_config(file.string(), "the file", "is larger than 64 MiB");
  return parse_tokenizer_config(
      {reinterpret_cast<const char*>(bytes.bytes().data()), bytes.bytes().size()}, file.string());
}

}  // namespace meshwright::tokenizer
