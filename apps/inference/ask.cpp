#include "apps/inference/ask.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <system_error>

#include "apps/inference/chat_format.h"
#include "meshwright/error.h"
#include "meshwright/model/config_json.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/files/utf8.h"
#include "sdk/base/words.h"

namespace meshwright::generate {

namespace fs = std::filesystem;

namespace {

// "0.6", "20".
std::string number_text(double value) { return text::format("%.6g", value); }

// --chat, or --messages, with --system before them.
Conversation conversation_of(const Ask& ask) {
  Conversation out;
  if (ask.messages)
    out = parse_messages(
        base::read_foreign(*ask.messages, base::kSmallFile, ErrorCode::file_unreadable),
        *ask.messages);
  put_system(out, ask.system, ask.messages.value_or(""));
  if (ask.chat) out.messages.push_back(message_of("user", *ask.chat));
  return out;
}

}  // namespace

std::string take_generation_config(const Source& source, Ask& ask, bool conversation) {
  const fs::path file = source.extra("generation_config.json");
  std::error_code failed;
  if (!fs::exists(file, failed)) return {};
  const ConfigJson json = ConfigJson::parse(
      base::read_foreign(file, 16 << 20, ErrorCode::file_unreadable), file.string());
  std::vector<std::string> flags;
  auto take = [&](const char* flag, auto& now, auto value) {
    if (ask.given.contains(flag) || now == value) return;
    flags.push_back(std::string("--") + flag + " " + number_text(static_cast<double>(value)));
    if (conversation) now = value;
  };
  constexpr double kMost = std::numeric_limits<double>::max();
  if (json.has("do_sample") && !json.boolean("do_sample", true))
    take("temperature", ask.temperature, 0.0);
  else if (json.has("temperature"))
    take("temperature", ask.temperature, json.number("temperature", 0, kMost));
  if (json.has("top_k")) take("top-k", ask.top_k, json.integer("top_k", 0, INT32_MAX));
  if (json.has("top_p"))
    take("top-p", ask.top_p, json.number("top_p", std::numeric_limits<double>::min(), 1));
  if (json.has("min_p")) take("min-p", ask.min_p, json.number("min_p", 0, 1));
  if (json.has("repetition_penalty"))
    take("repetition-penalty", ask.repetition_penalty,
         json.number("repetition_penalty", std::numeric_limits<double>::min(), kMost));
  if (flags.empty()) return {};
  const std::string all = text::join(flags, " ");
  return conversation ? "as " + file.string() + " has it: " + all
                      : file.string() + " has other options, which conversations take: " + all;
}

void put_system(Conversation& conversation, const std::optional<std::string>& system,
                const std::string& where) {
  if (!system) return;
  chat::Value::List& messages = conversation.messages.as_list();
  if (!messages.empty() && messages[0].get("role")->as_string() == "system")
    throw Error(ErrorCode::usage,
                "--system, and the first message of " + where + " is the system's")
        .help("leave out --system");
  messages.insert(messages.begin(), message_of("system", *system));
}

void check_ways(const Ask& ask) {
  int ways = 0;
  std::string given;
  for (const auto& [name, is] : {std::pair{"--prompt", ask.prompt.has_value()},
                                 {"--tokens", ask.tokens.has_value()},
                                 {"--chat", ask.chat.has_value()},
                                 {"--messages", ask.messages.has_value()},
                                 {"--prompts", ask.prompts.has_value()}})
    if (is) {
      ++ways;
      given += (given.empty() ? "" : " and ") + std::string(name);
    }
  if (ways > 1 && (ask.of_messages() || ask.prompts))
    throw Error(ErrorCode::usage, given + " each say what is answered: one of them")
        .help("leave out all but one");
}

Asked asked_of(const Source& source, const Ask& ask) {
  check_ways(ask);
  if (!ask.of_messages()) {
    for (const auto& [name, is] : {std::pair{"--system", ask.system.has_value()},
                                   {"--chat-template", ask.chat_template.has_value()}})
      if (is)
        throw Error(ErrorCode::usage, std::string(name) + " is of a conversation")
            .help("--chat 'What to say' in place of --prompt");
    return {source.prompt(ask), source.stops(ask)};
  }
  const ChatFormat format(source, ask.chat_template, ask.adapter);
  return {format.prompt(conversation_of(ask)), format.stops(source, ask)};
}

void check_stop_texts(const Source& source, const Ask& ask) {
  for (const std::string& text : ask.stop_texts) {
    if (text.empty())
      throw Error(ErrorCode::usage, "--stop-text is empty: a text without letters is everywhere")
          .help("--stop-text $'\\n\\n' ends before an empty line");
    if (base::first_invalid(text) != text.size())
      throw Error(ErrorCode::usage, "--stop-text is no UTF-8").help("write it in UTF-8");
  }
  if (ask.stop_texts.empty()) return;
  if (ask.tokens)
    throw Error(ErrorCode::usage, "--stop-text looks for text, and --tokens gives ids")
        .help("--stop IDS ends behind one of these ids");
  if (source.tokenizer() == nullptr && !source.bytes())
    throw Error(ErrorCode::usage, "--stop-text needs a tokenizer, which " +
                                      source.folder().string() + " does not have")
        .help("--stop IDS ends behind one of these ids");
}

}  // namespace meshwright::generate
