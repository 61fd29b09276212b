#include "sdk/text/chat/store.h"

#include <algorithm>
#include <sstream>
#include <string_view>

#include "sdk/base/files/foreign_file.h"

namespace meshwright::chat {

namespace {

namespace fs = std::filesystem;

std::string text_of_file(const fs::path& path) {
  return base::read_foreign(path, base::kSmallFile, ErrorCode::file_unreadable);
}

bool is_file(const fs::path& path) {
  std::error_code failed;
  return fs::is_regular_file(path, failed);
}

Value json_file(const fs::path& path) {
  if (!is_file(path)) return {};
  try {
    return parse_json(text_of_file(path));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::bad_dataset) throw;
    throw Error(ErrorCode::bad_template, path.string() + ":" + error.message());
  }
}

std::string quoted_list(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "\"" : ", \"") + name + "\"";
  return out;
}

}  // namespace

void Store::add(const std::string& name, const std::string& text, const std::string& shown) {
  try {
    templates_.insert_or_assign(name, Known{text, ChatTemplate::parse(text, shown)});
  } catch (const Error& error) {
    templates_.insert_or_assign(name, Known{text, error});
  }
}

void Store::read_tokens(const fs::path& folder, const Value& config) {
  Value map = json_file(folder / "special_tokens_map.json");
  for (const Value* from : {&config, static_cast<const Value*>(&map)}) {
    if (!from->is_dict()) continue;
    for (const auto& [key, value] : from->as_dict()) {
      constexpr std::string_view kEnding = "_token";
      if (!std::string_view(key).ends_with(kEnding)) continue;
      const Value* content = value.is_dict() ? value.get("content") : &value;
      if (content == nullptr || !content->is_string()) continue;
      auto known = [&, name = std::string_view(key)](const auto& one) { return one.first == name; };
      if (std::any_of(special_tokens_.begin(), special_tokens_.end(), known)) continue;
      special_tokens_.emplace_back(key, content->as_string());
    }
  }
}

Store Store::read(const fs::path& folder) {
  Store out;
  out.folder_ = folder.string();
  fs::path config_path = folder / "tokenizer_config.json";
  Value config = json_file(config_path);
  out.read_tokens(folder, config);
  std::error_code failed;
  fs::path more = folder / "additional_chat_templates";
  if (is_file(folder / "chat_template.jinja"))
    out.add("default", text_of_file(folder / "chat_template.jinja"),
            (folder / "chat_template.jinja").string());
  if (fs::is_directory(more, failed))
    for (const fs::directory_entry& entry : fs::directory_iterator(more, failed))
      if (entry.path().extension() == ".jinja" && is_file(entry.path()))
        out.add(entry.path().stem().string(), text_of_file(entry.path()), entry.path().string());
  const Value* given = config.get("chat_template");
  if (!out.templates_.empty() || given == nullptr || given->is_none()) return out;
  std::string shown = config_path.string() + ": chat_template";
  if (given->is_string()) {
    out.add("default", given->as_string(), shown);
    return out;
  }
  auto damaged = [&] {
    return Error(ErrorCode::bad_template,
                 shown + ": must be a string or a list of {\"name\": ..., \"template\": ...}");
  };
  if (!given->is_list()) throw damaged();
  for (const Value& one : given->as_list()) {
    const Value *name = one.get("name"), *text = one.get("template");
    if (name == nullptr || !name->is_string() || text == nullptr || !text->is_string())
      throw damaged();
    out.add(name->as_string(), text->as_string(), shown + " \"" + name->as_string() + "\"");
  }
  return out;
}

Store Store::of_text(const std::string& text, const std::string& name) {
  Store out;
  out.add("default", text, name);
  return out;
}

Store Store::open(const fs::path& folder, const std::string& requested, const std::string& key) {
  Store out = read(folder);
  out.key_ = key;
  if (requested.empty()) return out;
  auto only = [&](const std::string& text, const std::string& shown) {
    out.templates_.clear();
    out.add("default", text, shown);
  };
  if (is_file(requested)) {
    only(text_of_file(requested), requested);
  } else if (auto found = out.templates_.find(requested); found != out.templates_.end()) {
    auto chosen = found->second;
    out.templates_.clear();
    out.templates_.emplace(requested, std::move(chosen));
  } else if (requested == "chatml") {
    only(std::string(chatml()), "chatml");
  } else {
    std::vector<std::string> names = out.names();
    names.emplace_back("chatml");
    throw Error(ErrorCode::bad_template, "there is neither a file \"" + requested +
                                             "\" nor a chat template of that name; " +
                                             "there are " + quoted_list(names))
        .key(key)
        .help("set " + key + " = \"" + names.front() + "\"");
  }
  return out;
}

std::vector<std::string> Store::names() const {
  std::vector<std::string> out;
  for (const auto& [name, one] : templates_) out.push_back(name);
  return out;
}

std::vector<std::pair<std::string, std::string>> Store::texts() const {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& [name, one] : templates_) out.emplace_back(name, one.text);
  return out;
}

const ChatTemplate& Store::choose(bool has_tools) const {
  if (templates_.empty())
    throw Error(ErrorCode::bad_template,
                (folder_.empty() ? "the model" : folder_) + " has no chat template")
        .key(key_)
        .help("set " + key_ + " to a file, or to \"chatml\"");
  auto found = templates_.begin();
  if (templates_.size() > 1) {
    found = has_tools ? templates_.find("tool_use") : templates_.end();
    if (found == templates_.end()) found = templates_.find("default");
    if (found == templates_.end())
      throw Error(ErrorCode::bad_template, "none of the chat templates " + quoted_list(names()) +
                                               " is the one to use by default")
          .key(key_)
          .help("set " + key_ + " to one of them");
  }
  if (const Error* error = std::get_if<Error>(&found->second.parsed)) throw *error;
  return std::get<ChatTemplate>(found->second.parsed);
}

}  // namespace meshwright::chat
