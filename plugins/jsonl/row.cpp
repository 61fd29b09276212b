#include "row.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <initializer_list>
#include <limits>
#include <utility>

#include "meshwright/error.h"
#include "sdk/base/files/utf8.h"

namespace meshwright::jsonl {

namespace {

using chat::Value;

Error refusal(const std::string& where, const std::string& what) {
  return at_row(Error(ErrorCode::bad_dataset, where + ": " + what), where);
}

// A member that is there, and not null.
const Value* member(const Value& row, std::string_view key) {
  const Value* value = row.get(key);
  return value == nullptr || value->is_none() ? nullptr : value;
}

// The names that conversations of from/value have for roles.
std::string role_of_speaker(const std::string& speaker) {
  if (speaker == "human") return "user";
  if (speaker == "gpt") return "assistant";
  return speaker;
}

void check_content(const Value& content, const std::string& where, const std::string& place) {
  if (content.is_none() || content.is_string()) return;
  if (!content.is_list())
    throw refusal(where, place + ".content is " + content.kind_name() +
                             ", where a string, null or a list of texts belongs");
  for (const Value& part : content.as_list()) {
    const Value* type = part.get("type");
    const Value* text = part.get("text");
    if (type != nullptr && type->is_string() && type->as_string() == "text") {
      if (text != nullptr && text->is_string()) continue;
      throw refusal(where, place + ".content has a part of type \"text\" " +
                               (text == nullptr ? std::string("without \"text\"")
                                                : "whose \"text\" is " + text->kind_name()) +
                               "; only {\"type\": \"text\", \"text\": \"...\"} is read")
          .help("give the part its text as a string, or leave it out");
    }
    const std::string kind =
        type != nullptr && type->is_string() ? "\"" + type->as_string() + "\"" : "of no type";
    throw refusal(where, place + ".content has a part that is " + kind +
                             "; only {\"type\": \"text\", \"text\": \"...\"} is read")
        .help("remove rows with images, audio or video: the models here read text");
  }
}

// Whether the turn has a part in the loss.
bool weight_of(const Value& message, const std::string& where, const std::string& place) {
  std::optional<bool> out;
  for (const char* key : {"weight", "train"}) {
    const Value* value = message.get(key);
    if (value == nullptr || value->is_none()) continue;
    bool learnt = false;
    if (value->is_boolean())
      learnt = value->as_boolean();
    else if (value->is_integer() && (value->as_integer() == 0 || value->as_integer() == 1))
      learnt = value->as_integer() == 1;
    else if (value->is_real() && (value->as_real() == 0 || value->as_real() == 1))
      learnt = value->as_real() == 1;
    else
      throw at_row(
          Error(ErrorCode::out_of_range, where + ": " + place + "." + key + " must be 0 or 1")
              .help("1: the turn is learnt; 0: it is context only"),
          where);
    if (out && *out != learnt)
      throw refusal(where, place + " has \"weight\": " + (*out ? "1" : "0") + " and \"train\": " +
                               (learnt ? "1" : "0") + ", which contradict each other")
          .help("keep one of the two: with 1 the turn is learnt, with 0 it is context only");
    out = learnt;
  }
  return out.value_or(true);
}

void add_message(Row& row, const Value& given, const std::string& where, const std::string& place) {
  if (!given.is_dict())
    throw refusal(where, place + " is " + given.kind_name() + ", and not a message");
  Value message = given;
  const Value* role = message.get("role");
  if (const Value* from = message.get("from"); role == nullptr && from != nullptr) {
    if (!from->is_string()) throw refusal(where, place + ".from is " + from->kind_name());
    const Value* value = message.get("value");
    if (value == nullptr) throw refusal(where, place + " has \"from\" and no \"value\"");
    message = Value::dict(
        {{"role", Value::string(role_of_speaker(from->as_string()))}, {"content", *value}});
    for (const auto& [key, other] : given.as_dict())
      if (key != "from" && key != "value" && message.get(key) == nullptr) message.set(key, other);
    role = message.get("role");
  }
  if (role == nullptr) throw refusal(where, place + " has no \"role\"");
  if (!role->is_string() || !chat::is_role(role->as_string()))
    throw refusal(where,
                  place + ".role is " +
                      (role->is_string() ? "\"" + role->as_string() + "\"" : role->kind_name()) +
                      "; a role consists of letters, digits, _ and -");
  if (const Value* content = message.get("content")) check_content(*content, where, place);
  row.trained.push_back(weight_of(message, where, place));
  row.messages.push_back(std::move(message));
}

void add_messages(Row& row, const Value& given, const std::string& where, const std::string& key) {
  if (!given.is_list())
    throw refusal(where,
                  "\"" + key + "\" is " + given.kind_name() + ", where a list of messages belongs");
  size_t number = 0;
  for (const Value& message : given.as_list())
    add_message(row, message, where, key + "[" + std::to_string(number++) + "]");
}

// A member that is there, and not null; of a string what it says as JSON, kept in `parsed`.
const Value* json_member(const Value& row, const std::string& key, const std::string& where,
                         Value& parsed) {
  const Value* value = member(row, key);
  if (value == nullptr || !value->is_string()) return value;
  try {
    parsed = chat::parse_json(value->as_string());
  } catch (const Error& error) {
    throw refusal(where, "\"" + key + "\" is a string, but not one of JSON: " + error.message());
  }
  return &parsed;
}

void read_tools(Row& row, const Value& given, const std::string& where) {
  Value parsed;
  const Value* tools = json_member(given, "tools", where, parsed);
  if (tools == nullptr) return;
  if (!tools->is_list())
    throw refusal(where, "\"tools\" is " + tools->kind_name() +
                             ", where a list, or a list as a JSON string, belongs");
  row.tools = *tools;
}

// The row's own system text, as other trainers have it in a column: a message before the others.
void read_system(Row& row, const Value& given, const std::string& where) {
  const Value* system = member(given, "system");
  if (system == nullptr) return;
  if (!system->is_string())
    throw refusal(where, "\"system\" is " + system->kind_name() + ", where a string belongs");
  if (system->as_string().empty()) return;
  Value::List& messages = row.messages.as_list();
  if (const Value& first = messages.front(); first.get("role")->as_string() == "system") {
    const Value* said = first.get("content");
    if (said != nullptr && said->is_string() && said->as_string() == system->as_string()) return;
    throw refusal(where, "the row has a \"system\" and, as " + name_of_message(row, 0) +
                             ", another message of the role system")
        .help("keep one of the two");
  }
  messages.insert(messages.begin(), Value::dict({{"role", Value::string("system")},
                                                 {"content", Value::string(system->as_string())}}));
  row.trained.insert(row.trained.begin(), true);
  if (row.completion_at) ++*row.completion_at;
  row.own_system = true;
}

// What the row's chat is rendered with, as transformers' apply_chat_template takes it.
void read_variables(Row& row, const Value& given, const std::string& where) {
  Value parsed;
  const Value* variables = json_member(given, "chat_template_kwargs", where, parsed);
  if (variables == nullptr) return;
  if (!variables->is_dict())
    throw refusal(where, "\"chat_template_kwargs\" is " + variables->kind_name() +
                             ", where an object belongs: {\"enable_thinking\": false}");
  for (const char* taken : {"messages", "conversation", "tools", "add_generation_prompt",
                            "continue_final_message", "chat_template", "tokenize"})
    if (variables->get(taken) != nullptr)
      throw refusal(where, "\"chat_template_kwargs\" has \"" + std::string(taken) +
                               "\", which is no variable of a template")
          .help("remove it from there; \"messages\" and \"tools\" are keys of the row");
  row.variables = *variables;
}

void find_unread(Row& row, const Value& given, std::initializer_list<std::string_view> read) {
  for (const auto& [key, value] : given.as_dict())
    if (!value.is_none() && std::find(read.begin(), read.end(), key) == read.end())
      row.unread.push_back(key);
}

}  // namespace

std::string_view name_of(RowKind kind) {
  switch (kind) {
    case RowKind::messages:
      return "messages";
    case RowKind::prompt_completion:
      return "prompt_completion";
    case RowKind::text:
      break;
  }
  return "text";
}

std::string name_of_message(const Row& row, size_t number) {
  if (row.own_system && number == 0) return "system";
  const size_t before = row.own_system ? 1 : 0;
  const bool completion = row.completion_at && number >= *row.completion_at;
  return (completion ? "completion" : row.key) + "[" +
         std::to_string(number - (completion ? *row.completion_at : before)) + "]";
}

Error at_row(Error error, std::string_view where, int64_t column) {
  const size_t colon = where.rfind(':');
  int line = 0;
  if (colon != std::string_view::npos)
    std::from_chars(where.data() + colon + 1, where.data() + where.size(), line);
  error.at({Origin::Source::file, std::string(where.substr(0, colon)), line,
            static_cast<int>(std::min<int64_t>(column, std::numeric_limits<int>::max()))});
  return error;
}

std::optional<RowKind> kind_of(const Value& row) {
  if (member(row, "messages") != nullptr || member(row, "conversations") != nullptr)
    return RowKind::messages;
  if (member(row, "prompt") != nullptr && member(row, "completion") != nullptr)
    return RowKind::prompt_completion;
  if (member(row, "text") != nullptr) return RowKind::text;
  return std::nullopt;
}

Row read_row(const Value& row, RowKind wanted, const std::string& where, const std::string& table) {
  if (!row.is_dict()) throw refusal(where, "the row is " + row.kind_name() + ", and not an object");
  const std::optional<RowKind> kind = kind_of(row);
  if (!kind) {
    std::string keys;
    for (const auto& [key, value] : row.as_dict())
      keys += (keys.empty() ? "" : ", ") + key + (value.is_none() ? " (null)" : "");
    Error none = refusal(where,
                         "the row has neither \"messages\", nor \"prompt\" and \"completion\", nor "
                         "\"text\"; its keys: " +
                             (keys.empty() ? "none" : keys));
    const std::string file(where.substr(0, where.rfind(':')));
    const std::string asked =
        "(.instruction + (if (.input // \"\") == \"\" then \"\" else \"\\n\\n\" + .input end))";
    const bool alpaca = row.get("instruction") != nullptr && row.get("output") != nullptr;
    if (alpaca && (row.get("system") != nullptr || row.get("history") != nullptr))
      none.help(
          "Alpaca's rows with a system text or earlier turns are conversations: jq -c '{messages: "
          "([.system // empty | select(. != \"\") | {role: \"system\", content: .}] + [(.history "
          "// "
          "[])[] | {role: \"user\", content: .[0]}, {role: \"assistant\", content: .[1]}] + "
          "[{role: "
          "\"user\", content: " +
          asked + "}, {role: \"assistant\", content: .output}])}' " + file + " > rows.jsonl");
    else if (alpaca)
      none.help("Alpaca's rows are prompts and completions: jq -c '{prompt: " + asked +
                ", completion: .output}' " + file + " > rows.jsonl");
    else if (row.get("question") != nullptr && row.get("answer") != nullptr)
      none.help(
          "give the columns their names here: jq -c '{prompt: .question, completion: "
          ".answer}' " +
          file + " > rows.jsonl");
    throw none;
  }
  if (*kind != wanted)
    throw refusal(where, "the row is of kind " + std::string(name_of(*kind)) +
                             ", but the rows of this data set are of kind " +
                             std::string(name_of(wanted)))
        .key(table + ".format")
        .help("put rows of one kind into a data set")
        .help("set " + table + ".format = \"" + std::string(name_of(*kind)) +
              "\", if the rows are of that kind");

  Row out;
  out.kind = *kind;
  if (*kind == RowKind::messages) {
    const bool conversations = member(row, "messages") == nullptr;
    const std::string key = conversations ? "conversations" : "messages";
    out.key = key;
    add_messages(out, *row.get(key), where, key);
    if (out.messages.as_list().empty()) throw refusal(where, "\"" + key + "\" is empty");
    read_tools(out, row, where);
    read_system(out, row, where);
    read_variables(out, row, where);
    find_unread(out, row, {key, "tools", "system", "chat_template_kwargs"});
    return out;
  }
  if (*kind == RowKind::text) {
    const Value& text = *row.get("text");
    if (!text.is_string())
      throw refusal(where, "\"text\" is " + text.kind_name() + ", and not a string");
    out.completion = text.as_string();
    find_unread(out, row, {"text"});
    return out;
  }
  const Value &prompt = *row.get("prompt"), &completion = *row.get("completion");
  if (prompt.is_string() && completion.is_string()) {
    out.prompt = prompt.as_string();
    out.completion = completion.as_string();
    if (const Value* system = member(row, "system");
        system != nullptr && !(system->is_string() && system->as_string().empty()))
      throw refusal(where,
                    "the row has a \"system\" beside a \"prompt\" that is a string, and no "
                    "template joins these two")
          .help(
              "write messages, which a template joins: {\"system\": \"...\", \"prompt\": "
              "[{\"role\": \"user\", \"content\": \"...\"}], \"completion\": [{\"role\": "
              "\"assistant\", \"content\": \"...\"}]}")
          .help("or put its text into \"prompt\", and leave \"system\" out");
    find_unread(out, row, {"prompt", "completion", "system"});
    return out;
  }
  if (!prompt.is_list() || !completion.is_list())
    throw refusal(where, "\"prompt\" is " + prompt.kind_name() + " and \"completion\" is " +
                             completion.kind_name() +
                             "; they are two strings or two lists of messages");
  out.key = "prompt";
  add_messages(out, prompt, where, "prompt");
  out.completion_at = out.messages.as_list().size();
  add_messages(out, completion, where, "completion");
  if (*out.completion_at == out.messages.as_list().size())
    throw refusal(where, "\"completion\" is empty");
  read_tools(out, row, where);
  if (!out.messages.as_list().empty()) read_system(out, row, where);
  read_variables(out, row, where);
  find_unread(out, row, {"prompt", "completion", "tools", "system", "chat_template_kwargs"});
  return out;
}

namespace {

// The byte at `at` of a row, which begins at `line` and `first`, is of no character.
Error not_utf8(std::string_view text, size_t at, const std::string& file, int64_t line,
               int64_t first) {
  const std::string_view before = text.substr(0, at);
  const size_t feed = before.rfind('\n');
  const int64_t column = feed == std::string_view::npos ? first + static_cast<int64_t>(at)
                                                        : static_cast<int64_t>(at - feed);
  char byte[8];
  std::snprintf(byte, sizeof byte, "0x%02x", static_cast<unsigned>(text[at]) & 0xffU);
  const std::string where =
      file + ":" + std::to_string(line + std::count(before.begin(), before.end(), '\n'));
  return at_row(
      Error(ErrorCode::bad_dataset,
            where + ":" + std::to_string(column) + ": the text is not UTF-8 (byte " + byte + ")")
          .help(
              "save the file as UTF-8: iconv -f CP1252 -t UTF-8 makes it of Windows' Western code"),
      where, column);
}

}  // namespace

Value parse_row(std::string_view text, const std::string& file, int64_t line, int64_t column) {
  const std::string begin = file + ":" + std::to_string(line);
  if (text.empty())
    throw at_row(Error(ErrorCode::bad_dataset,
                       begin + ":" + std::to_string(column) +
                           ": not valid JSON: a comma stands where a row should begin")
                     .help("remove that comma"),
                 begin, column);
  try {
    return chat::parse_json(text);
  } catch (const Error& error) {
    // JSON's own words for it are "syntax error".
    if (const size_t at = base::first_invalid(text); at < text.size())
      throw not_utf8(text, at, file, line, column);
    // Its messages begin with LINE:COLUMN within the row.
    const std::string& message = error.message();
    const size_t colon = message.find(':');
    int64_t within = 0, place = 0;
    const char* const end = message.data() + (colon == std::string::npos ? 0 : colon);
    if (std::from_chars(message.data(), end, within).ptr != end || within < 1)
      throw refusal(begin, message);
    const char* const rest = std::from_chars(end + 1, message.data() + message.size(), place).ptr;
    if (within == 1) place += column - 1;
    const std::string where = file + ":" + std::to_string(line + within - 1);
    Error placed(ErrorCode::bad_dataset,
                 where + ":" + std::to_string(place) +
                     message.substr(static_cast<size_t>(rest - message.data())));
    // A line of an object that was written over several, or that was cut off.
    if (message.ends_with("incomplete JSON"))
      placed.help("a row is an object on one line, and this one does not end there: jq -c . '" +
                  file + "' > rows.jsonl writes each on a line");
    if (message.ends_with("with nothing behind it")) placed.help("remove that comma");
    throw at_row(std::move(placed), where, place);
  }
}

}  // namespace meshwright::jsonl
