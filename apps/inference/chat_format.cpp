#include "apps/inference/chat_format.h"

#include <algorithm>
#include <ctime>
#include <system_error>

#include "meshwright/error.h"
#include "sdk/text/chat/roles.h"

namespace meshwright::generate {

namespace fs = std::filesystem;

namespace {

constexpr const char* kMessagesHelp =
    R"(write a list of messages: [{"role": "user", "content": "Hello"}])";

Error bad_messages(const std::string& where, const std::string& what) {
  return Error(ErrorCode::bad_dataset, where + ": " + what).help(kMessagesHelp);
}

void check_messages(const chat::Value& messages, const std::string& file) {
  const chat::Value::List& list = messages.as_list();
  if (list.empty()) throw bad_messages(file, "there is no message");
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = file + ": message " + std::to_string(i);
    if (!list[i].is_dict()) throw bad_messages(where, "is " + list[i].kind_name() + ", no object");
    const chat::Value* role = list[i].get("role");
    if (role == nullptr) throw bad_messages(where, "has no \"role\"");
    if (!role->is_string() || !chat::is_role(role->as_string()))
      throw bad_messages(where, "\"role\" is no name");
    const chat::Value* content = list[i].get("content");
    if (content != nullptr && !content->is_string() && !content->is_none() && !content->is_list())
      throw bad_messages(where, "\"content\" is " + content->kind_name() + ", no string");
    if (content == nullptr && list[i].get("tool_calls") == nullptr)
      throw bad_messages(where, "has no \"content\"");
  }
  if (list.back().get("role")->as_string() == "assistant")
    throw Error(ErrorCode::bad_dataset,
                file + ": the last message is the assistant's: nothing asks for an answer")
        .help("leave it out, or add what the user says to it");
}

// Where the folder's template and what belongs to it lies.
fs::path template_folder(const Source& source) {
  std::error_code failed;
  for (const char* name : {"chat_template.jinja", "tokenizer_config.json"})
    if (const fs::path file = source.extra(name); fs::exists(file, failed))
      return file.parent_path();
  return source.folder();
}

chat::Store store_of(const Source& source, const std::optional<std::string>& requested,
                     const std::optional<std::string>& adapter) {
  const fs::path folder = template_folder(source);
  if (requested) return chat::Store::open(folder, *requested, "--chat-template");
  chat::Store out = chat::Store::open(folder, "", "--chat-template");
  if (out.empty() && adapter) out = chat::Store::open(*adapter, "", "--chat-template");
  if (!out.empty()) return out;
  throw Error(ErrorCode::bad_template,
              folder.string() +
                  " has no chat template: neither chat_template.jinja nor chat_template in "
                  "tokenizer_config.json")
      .help("a model that has learnt no conversations goes on with a text: meshwright generate " +
            source.folder().string() + " --prompt 'Once upon a time'")
      .help("of one that has, name the template: --chat-template FILE, or --chat-template chatml");
}

const tokenizer::Tokenizer& tokenizer_of(const Source& source) {
  if (source.tokenizer() == nullptr)
    throw Error(ErrorCode::usage, "a conversation needs a tokenizer, which " +
                                      source.folder().string() + " does not have")
        .help("copy the model's tokenizer.json to it");
  return *source.tokenizer();
}

// Ascending, none inside another.
std::vector<tokenizer::ByteRange> parts_of_messages(const chat::ChatTemplate::Rendered& rendered) {
  std::vector<tokenizer::ByteRange> out;
  for (const chat::ChatTemplate::Origin& origin : rendered.origins)
    out.push_back({origin.begin, origin.end});
  for (const auto& [begin, end] : rendered.tools) out.push_back({begin, end});
  std::ranges::sort(out, {}, &tokenizer::ByteRange::begin);
  return out;
}

// As strftime_now() has it in transformers: of this place.
chat::Date now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm here{};
  ::localtime_r(&seconds, &here);
  return {here.tm_year + 1900, here.tm_mon + 1, here.tm_mday,
          here.tm_hour,        here.tm_min,     here.tm_sec};
}

}  // namespace

chat::Value message_of(const std::string& role, const std::string& content) {
  return chat::Value::dict(
      {{"role", chat::Value::string(role)}, {"content", chat::Value::string(content)}});
}

Conversation parse_messages(std::string_view text, const std::string& where) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos)
    throw bad_messages(where, "the file is empty");
  chat::Value read;
  try {
    read = chat::parse_json(text);
  } catch (const Error& error) {
    throw bad_messages(where, error.message());
  }
  Conversation out;
  if (const chat::Value* messages = read.get("messages"); messages != nullptr) {
    if (const chat::Value* tools = read.get("tools"); tools != nullptr) out.tools = *tools;
    out.messages = *messages;
  } else {
    out.messages = read;
  }
  if (!out.messages.is_list())
    throw bad_messages(where, "it holds " + out.messages.kind_name() +
                                  (read.is_dict() ? " without \"messages\"" : "") +
                                  ", no list of messages");
  if (!out.tools.is_none() && !out.tools.is_list())
    throw bad_messages(where, "\"tools\" is " + out.tools.kind_name() + ", no list");
  check_messages(out.messages, where);
  return out;
}

ChatFormat::ChatFormat(const Source& source, const std::optional<std::string>& requested,
                       const std::optional<std::string>& adapter)
    : store_(store_of(source, requested, adapter)),
      tokenizer_(tokenizer_of(source)),
      vocab_(source.vocab()) {}

chat::ChatTemplate::Request ChatFormat::request_for(const Conversation& conversation) const {
  chat::ChatTemplate::Request out;
  out.messages = &conversation.messages;
  if (!conversation.tools.is_none()) out.tools = &conversation.tools;
  out.special_tokens = store_.special_tokens();
  out.date = now();
  return out;
}

std::vector<int64_t> ChatFormat::prompt(const Conversation& conversation) const {
  chat::ChatTemplate::Request request = request_for(conversation);
  request.add_generation_prompt = true;
  const chat::ChatTemplate& chat = store_.choose(request.tools != nullptr);
  for (const chat::Value& one : conversation.messages.as_list()) {
    const std::string& role = one.get("role")->as_string();
    if (chat::is_known_role(role, chat.text())) continue;
    const std::string meant = chat::role_meant(role);
    throw Error(ErrorCode::usage,
                "neither chats nor " + chat.name() + " know the role \"" + role + "\"")
        .help(meant.empty() ? "roles are system, user, assistant and tool"
                            : "did you mean \"" + meant + "\"?");
  }
  const chat::ChatTemplate::Rendered rendered = chat.render(request);
  const std::vector<tokenizer::ByteRange> plain = parts_of_messages(rendered);
  std::vector<int64_t> out =
      tokenizer_.encode_ranges(rendered.text, {.special = false, .plain = plain}).ids;
  if (out.empty())
    throw Error(ErrorCode::bad_template, chat.name() + " makes no token of the conversation")
        .help("--chat-template names another one");
  if (const int64_t largest = std::ranges::max(out); largest >= vocab_)
    throw Error(ErrorCode::bad_token, "the conversation has the token " + std::to_string(largest) +
                                          ", but the model's vocabulary has " +
                                          std::to_string(vocab_) + " entries")
        .help("check that config.json and the tokenizer belong together");
  return out;
}

std::optional<int64_t> ChatFormat::end_of_turn() const {
  Conversation two;
  two.messages.push_back(message_of("user", "a"));
  two.messages.push_back(message_of("assistant", "b"));
  const chat::ChatTemplate::Request request = request_for(two);
  std::vector<std::string> special;
  for (const std::string_view token : tokenizer_.special_tokens()) special.emplace_back(token);
  try {
    const chat::ChatTemplate& chat = store_.choose(false);
    const chat::ChatTemplate::Rendered rendered = chat.render(request);
    const std::vector<chat::Span> answers = chat::assistant_spans(chat, request, rendered, special);
    if (answers.empty() || !answers.back().ends) return std::nullopt;
    const std::string_view answer(rendered.text.data() + answers.back().begin,
                                  answers.back().end - answers.back().begin);
    const std::string* longest = nullptr;
    for (const std::string& token : special)
      if (answer.ends_with(token) && (longest == nullptr || token.size() > longest->size()))
        longest = &token;
    return longest != nullptr ? tokenizer_.id_of(*longest) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;  // a template that wants more of a conversation than that
  }
}

std::vector<int64_t> ChatFormat::stops(const Source& source, const Request& request) const {
  std::vector<int64_t> out = source.stops(request);
  if (request.stop) return out;
  if (const std::optional<int64_t> end = end_of_turn();
      end && *end < vocab_ && std::ranges::find(out, *end) == out.end())
    out.push_back(*end);
  return out;
}

}  // namespace meshwright::generate
