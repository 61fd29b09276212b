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
  // Read only where it would be taken: what cannot be is no reason to refuse anything else.
  auto take = [&](const char* flag, const char* key, auto& now, const auto& read) {
    if (ask.given.contains(flag) || !json.has(key)) return;
    auto value = now;
    try {
      value = read();
    } catch (Error& error) {
      if (!conversation) return;
      throw Error(error).help(std::string("--") + flag + " says it in its place");
    }
    if (now == value) return;
    flags.push_back(std::string("--") + flag + " " + number_text(static_cast<double>(value)));
    if (conversation) now = value;
  };
  constexpr double kMost = std::numeric_limits<double>::max(),
                   kLeast = std::numeric_limits<double>::min();
  const bool greedy = json.has("do_sample") && !json.boolean("do_sample", true);
  take("temperature", greedy ? "do_sample" : "temperature", ask.temperature,
       [&] { return greedy ? 0.0 : json.number("temperature", 0, kMost); });
  take("top-k", "top_k", ask.top_k, [&] { return json.integer("top_k", 0, INT32_MAX); });
  take("top-p", "top_p", ask.top_p, [&] { return json.number("top_p", kLeast, 1); });
  take("min-p", "min_p", ask.min_p, [&] { return json.number("min_p", 0, 1); });
  take("repetition-penalty", "repetition_penalty", ask.repetition_penalty,
       [&] { return json.number("repetition_penalty", kLeast, kMost); });
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

void refuse_for_texts(const Ask& ask, const std::string& why) {
  for (const auto& [name, is] : {std::pair{"--system", ask.system.has_value()},
                                 {"--chat-template", ask.chat_template.has_value()}})
    if (is)
      throw Error(ErrorCode::usage,
                  std::string(name) + " is of a conversation" + (why.empty() ? "" : ", and " + why))
          .help(ask.prompts ? R"(rows of {"messages": [{"role": "user", "content": "Hello"}]})"
                            : "--chat 'What to say' in place of --prompt");
}

Asked asked_of(const Source& source, const Ask& ask) {
  check_ways(ask);
  if (!ask.of_messages()) {
    refuse_for_texts(ask, "");
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
  if (source.tokenizer() != nullptr)
    for (const std::string_view special : source.tokenizer()->special_tokens())
      for (const std::string& text : ask.stop_texts)
        if (text.find(special) != std::string::npos)
          throw Error(ErrorCode::usage, "--stop-text \"" + text +
                                            "\" never comes: " + std::string(special) +
                                            " is a special token, which is no text")
              .help("--stop " + std::to_string(*source.tokenizer()->id_of(special)) +
                    " ends behind it");
  if (source.tokenizer() == nullptr && !source.bytes())
    throw Error(ErrorCode::usage, "--stop-text needs a tokenizer, which " +
                                      source.folder().string() + " does not have")
        .help("--stop IDS ends behind one of these ids");
}

}  // namespace meshwright::generate
