#include "row.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <iterator>
#include <utility>

#include "meshwright/error.h"
#include "sdk/base/files/utf8.h"
#include "sdk/base/words.h"

namespace meshwright::jsonl {

namespace {

using chat::Value;

// What other programs call the roles.
constexpr std::pair<std::string_view, std::string_view> kRoles[] = {
    {"human", "user"},          {"prompter", "user"},         {"user", "user"},
    {"gpt", "assistant"},       {"chatgpt", "assistant"},     {"bot", "assistant"},
    {"chatbot", "assistant"},   {"model", "assistant"},       {"ai", "assistant"},
    {"assistant", "assistant"}, {"system", "system"},         {"tool", "tool"},
    {"observation", "tool"},    {"function_response", "tool"}};

std::string role_of_speaker(const std::string& speaker) {
  const std::string name = text::normal(speaker);
  for (const auto& [theirs, role] : kRoles)
    if (name == theirs) return std::string(role);
  return speaker;
}

// The keys that say who speaks, and those for what is said, the usual one first.
struct Dialect {
  const char* speaker;
  std::array<const char*, 3> said;
};
constexpr Dialect kDialects[] = {{"from", {"value", "content", "text"}},
                                 {"speaker", {"text", "content", "value"}}};

// A turn that calls a tool, as text: {"name": ..., "arguments": ...}, or a list of these.
Value tool_calls_of(const Value& said, const std::string& where, const std::string& place) {
  auto wrong = [&] {
    return refused_row(where, place +
                                  " is a function_call without {\"name\": ..., "
                                  "\"arguments\": ...} as JSON");
  };
  Value held;
  try {
    held = said.is_string() ? chat::parse_json(said.as_string()) : said;
  } catch (const Error&) {
    throw wrong();
  }
  Value out = Value::list();
  for (const Value& call : held.is_list() ? held.as_list() : Value::List{held}) {
    const Value* name = call.get("name");
    if (name == nullptr || !name->is_string()) throw wrong();
    out.push_back(Value::dict({{"type", Value::string("function")}, {"function", call}}));
  }
  return out;
}

// A message whose keys or roles have names of another program, with ours; `known`: roles are
// renamed where the key is ours, too.
Value translated(Row& row, const Value& given, bool known, const std::string& where,
                 const std::string& place) {
  const char* speaker = "role";
  std::array<const char*, 3> said{"content", "value", "text"};
  if (given.get("role") == nullptr) {
    const auto* const dialect =
        std::find_if(std::begin(kDialects), std::end(kDialects),
                     [&](const Dialect& one) { return given.get(one.speaker) != nullptr; });
    if (dialect == std::end(kDialects)) return given;
    speaker = dialect->speaker;
    said = dialect->said;
  } else if (!known) {
    return given;
  }
  const Value& who = *given.get(speaker);
  const bool theirs = std::string_view(speaker) != "role";
  if (!who.is_string()) {
    if (!theirs) return given;
    throw refused_row(where, place + "." + speaker + " is " + who.kind_name());
  }
  const auto* const key = std::find_if(said.begin(), said.end(),
                                       [&](const char* one) { return given.get(one) != nullptr; });
  if (key == said.end() && theirs)
    throw refused_row(where, place + " has \"" + speaker + "\" and no \"" + said[0] + "\"");
  std::string role = role_of_speaker(who.as_string());
  const bool calls = text::normal(who.as_string()) == "function_call";
  // human and gpt of `from` have always been read so: they change no run that began before.
  if (calls ||
      (role != who.as_string() && !(std::string_view(speaker) == "from" &&
                                    (who.as_string() == "human" || who.as_string() == "gpt"))))
    ++row.renamed;
  Value out = Value::dict({{"role", Value::string(calls ? "assistant" : std::move(role))}});
  if (calls) {
    out.set("content", Value::string(""));
    out.set("tool_calls",
            tool_calls_of(key == said.end() ? Value() : *given.get(*key), where, place));
  } else if (key != said.end()) {
    out.set("content", *given.get(*key));
  }
  for (const auto& [name, other] : given.as_dict())
    if (name != speaker && (key == said.end() || name != *key) && out.get(name) == nullptr)
      out.set(name, other);
  return out;
}

void check_content(const Value& content, const std::string& where, const std::string& place) {
  if (content.is_none() || content.is_string()) return;
  if (!content.is_list())
    throw refused_row(where, place + ".content is " + content.kind_name() +
                                 ", where a string, null or a list of texts belongs");
  for (const Value& part : content.as_list()) {
    const Value* type = part.get("type");
    const Value* text = part.get("text");
    if (type != nullptr && type->is_string() && type->as_string() == "text") {
      if (text != nullptr && text->is_string()) continue;
      throw refused_row(where, place + ".content has a part of type \"text\" " +
                                   (text == nullptr ? std::string("without \"text\"")
                                                    : "whose \"text\" is " + text->kind_name()) +
                                   "; only {\"type\": \"text\", \"text\": \"...\"} is read")
          .help("give the part its text as a string, or leave it out");
    }
    const std::string kind =
        type != nullptr && type->is_string() ? "\"" + type->as_string() + "\"" : "of no type";
    throw refused_row(where, place + ".content has a part that is " + kind +
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
      throw refused_row(where, place + " has \"weight\": " + (*out ? "1" : "0") +
                                   " and \"train\": " + (learnt ? "1" : "0") +
                                   ", which contradict each other")
          .help("keep one of the two: with 1 the turn is learnt, with 0 it is context only");
    out = learnt;
  }
  return out.value_or(true);
}

void add_message(Row& row, const Value& given, bool known, const std::string& where,
                 std::string place) {
  if (!given.is_dict())
    throw refused_row(where, place + " is " + given.kind_name() + ", and not a message");
  Value message = translated(row, given, known, where, place);
  const Value* role = message.get("role");
  if (role == nullptr)
    throw refused_row(where, place + " has no \"role\"")
        .help(
            "a message is {\"role\": \"user\", \"content\": \"...\"}, or has from and value, or "
            "speaker and text");
  if (!role->is_string() || !chat::is_role(role->as_string()))
    throw refused_row(
        where, place + ".role is " +
                   (role->is_string() ? "\"" + role->as_string() + "\"" : role->kind_name()) +
                   "; a role consists of letters, digits, _ and -");
  if (const Value* content = message.get("content")) check_content(*content, where, place);
  row.trained.push_back(weight_of(message, where, place));
  row.messages.push_back(std::move(message));
  row.names.push_back(std::move(place));
}

// `key`: the path of the column, for messages.
void add_messages(Row& row, const Value& given, bool known, const std::string& where,
                  const std::string& key) {
  if (!given.is_list())
    throw refused_row(
        where, "\"" + key + "\" is " + given.kind_name() + ", where a list of messages belongs")
        .help(
            "write it as [{\"role\": \"user\", \"content\": ...}, ...], or name the column of a "
            "text "
            "in `fields`: { text = \"" +
            key + "\" }");
  size_t number = 0;
  for (const Value& message : given.as_list())
    add_message(row, message, known, where, key + "[" + std::to_string(number++) + "]");
}

void add_text(Row& row, const char* role, std::string text, std::string name) {
  row.messages.push_back(
      Value::dict({{"role", Value::string(role)}, {"content", Value::string(std::move(text))}}));
  row.trained.push_back(true);
  row.names.push_back(std::move(name));
}

// A member that is there, and not null; of a string what it says as JSON, kept in `parsed`.
const Value* json_member(const Value& row, const std::string& key, const std::string& where,
                         Value& parsed) {
  const Value* value = member(row, key);
  if (value == nullptr || !value->is_string()) return value;
  try {
    parsed = chat::parse_json(value->as_string());
  } catch (const Error& error) {
    throw refused_row(where,
                      "\"" + key + "\" is a string, but not one of JSON: " + error.message());
  }
  return &parsed;
}

void read_tools(Row& row, const Value& given, const std::string& where) {
  Value parsed;
  const Value* tools = json_member(given, "tools", where, parsed);
  if (tools == nullptr) return;
  if (!tools->is_list())
    throw refused_row(where, "\"tools\" is " + tools->kind_name() +
                                 ", where a list, or a list as a JSON string, belongs");
  row.tools = *tools;
}

// The row's own system text, as other trainers have it in a column: a message before the others.
void read_system(Row& row, const Value& given, const Form& form, const std::string& where) {
  if (!form.system.given()) return;
  std::string text = form.system.text(given, where, form.table, false);
  if (text.empty()) return;
  Value::List& messages = row.messages.as_list();
  if (!messages.empty() && messages.front().get("role")->as_string() == "system") {
    const Value* said = messages.front().get("content");
    if (said != nullptr && said->is_string() && said->as_string() == text) return;
    throw refused_row(where, "the row has a \"" + form.system.name() + "\" and, as " +
                                 row.names.front() + ", another message of the role system")
        .help("keep one of the two");
  }
  messages.insert(messages.begin(), Value::dict({{"role", Value::string("system")},
                                                 {"content", Value::string(std::move(text))}}));
  row.names.insert(row.names.begin(), form.system.name());
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
    throw refused_row(where, "\"chat_template_kwargs\" is " + variables->kind_name() +
                                 ", where an object belongs: {\"enable_thinking\": false}");
  for (const char* taken : {"messages", "conversation", "tools", "add_generation_prompt",
                            "continue_final_message", "chat_template", "tokenize"})
    if (variables->get(taken) != nullptr)
      throw refused_row(where, "\"chat_template_kwargs\" has \"" + std::string(taken) +
                                   "\", which is no variable of a template")
          .help("remove it from there; \"messages\" and \"tools\" are keys of the row");
  row.variables = *variables;
}

void find_unread(Row& row, const Value& given, const Form& form,
                 std::initializer_list<std::string_view> read) {
  const Field* const fields[] = {&form.prompt, &form.completion, &form.messages,
                                 &form.text,   &form.system,     &form.weight};
  for (const auto& [key, value] : given.as_dict())
    if (!value.is_none() && std::find(read.begin(), read.end(), key) == read.end() &&
        std::none_of(std::begin(fields), std::end(fields),
                     [&, name = std::string_view(key)](const Field* field) {
                       return field->given() && field->reads(name);
                     }))
      row.unread.push_back(key);
}

// What the row counts in the loss.
void read_weight(Row& row, const Value& given, const Form& form, const std::string& where) {
  if (!form.weight.given()) return;
  const Value* value = form.weight.value(given, where, form.table);
  auto wrong = [&](const std::string& what) {
    return at_row(Error(ErrorCode::out_of_range,
                        where + ": the weight of the row, \"" + form.weight.name() + "\", " + what)
                      .key(form.table + ".fields.weight")
                      .help("write a number of 0 or more: a row of 2 counts as one that is there "
                            "twice, one of 0 is left out"),
                  where);
  };
  if (value == nullptr) throw wrong("is null or absent");
  if (!value->is_real() && !value->is_integer())
    throw wrong("is " + value->kind_name() + ", and not one of 64 bits");
  const double weight =
      value->is_real() ? value->as_real() : static_cast<double>(value->as_integer());
  row.weight = static_cast<float>(weight);
  if (weight < 0) throw wrong("is negative");
  if (!std::isfinite(row.weight) || (weight > 0 && row.weight == 0))
    throw wrong("is none that float32 has");
}

// Pairs of a question and its answer before the last.
void read_history(Row& row, const Value& given, const std::string& where) {
  const Value* history = member(given, "history");
  if (history == nullptr) return;
  auto is_turn = [](const Value& turn) {
    return turn.is_list() && turn.as_list().size() == 2 && turn.as_list()[0].is_string() &&
           turn.as_list()[1].is_string();
  };
  if (!history->is_list() ||
      !std::all_of(history->as_list().begin(), history->as_list().end(), is_turn))
    throw refused_row(where,
                      "\"history\" is no list of pairs of strings: "
                      "[[\"question\", \"answer\"]]");
  size_t number = 0;
  for (const Value& turn : history->as_list()) {
    const std::string name = "history[" + std::to_string(number++) + "]";
    add_text(row, "user", turn.as_list()[0].as_string(), name + "[0]");
    add_text(row, "assistant", turn.as_list()[1].as_string(), name + "[1]");
  }
}

void read_beside(Row& row, const Value& given, const Form& form, const std::string& where) {
  read_tools(row, given, where);
  read_system(row, given, form, where);
  read_variables(row, given, where);
}

Row read_conversation(const Value& row, const Form& form, const std::string& where) {
  Row out;
  out.kind = RowKind::messages;
  const Value* held = nullptr;
  std::string key;
  if (form.messages.given()) {
    key = form.messages.name();
    held = form.messages.value(row, where, form.table);
    if (held == nullptr) throw refused_row(where, "\"" + key + "\" is null");
  } else {
    key = conversation_key(row, form);
    held = row.get(key);
  }
  add_messages(out, *held, key != "messages", where, key);
  if (out.messages.as_list().empty()) throw refused_row(where, "\"" + key + "\" is empty");
  read_beside(out, row, form, where);
  find_unread(out, row, form, {key, "tools", "chat_template_kwargs"});
  return out;
}

Row read_text(const Value& row, const Form& form, const std::string& where) {
  Row out;
  out.kind = RowKind::text;
  if (form.by_fields) {
    out.completion = form.text.text(row, where, form.table);
  } else {
    const Value& text = *row.get("text");
    if (!text.is_string())
      throw refused_row(where, "\"text\" is " + text.kind_name() + ", and not a string");
    out.completion = text.as_string();
  }
  find_unread(out, row, form, {});
  return out;
}

// Of a column, what it holds if that is a list of messages.
const Value* list_of(const Field& field, const Value& row, const std::string& where,
                     const std::string& table) {
  if (field.joins()) return nullptr;
  const Value* value = field.value(row, where, table);
  if (value == nullptr)
    throw refused_row(where, "\"" + field.name() + "\" is null").key(table + ".fields");
  return value->is_list() ? value : nullptr;
}

// A prompt and a completion that are strings, joined as they are.
Row read_joined(const Value& row, const Form& form, const std::string& where) {
  Row out;
  out.kind = RowKind::prompt_completion;
  out.of_strings = true;
  out.prompt = form.prompt.text(row, where, form.table);
  out.completion = form.completion.text(row, where, form.table);
  if (form.system.given() && !form.system.text(row, where, form.table, false).empty())
    throw refused_row(where, "the row has a \"" + form.system.name() + "\" beside a \"" +
                                 form.prompt.name() +
                                 "\" that is a string, and no template joins these two")
        .key(form.table + ".format")
        .help(
            "set " + form.table +
            ".format = \"messages\": a prompt and its completion are messages of the user and the "
            "assistant then, which a template joins")
        .help("or put its text into the prompt: set " + form.table +
              ".format = \"prompt_completion\" and " + form.table + ".fields = { prompt = \"{" +
              form.system.name() + "?}\\n{" + form.prompt.name() + "}\" }");
  find_unread(out, row, form, {});
  return out;
}

Row read_pair(const Value& row, const Form& form, const std::string& where) {
  const Value *prompt = list_of(form.prompt, row, where, form.table),
              *completion = list_of(form.completion, row, where, form.table);
  if (!form.chats && prompt == nullptr && completion == nullptr)
    return read_joined(row, form, where);
  if (!form.chats && (prompt == nullptr || completion == nullptr)) {
    auto kind = [&](const Field& field) {
      return field.joins() ? "a string" : field.value(row, where, form.table)->kind_name();
    };
    throw refused_row(where, "\"" + form.prompt.name() + "\" is " + kind(form.prompt) + " and \"" +
                                 form.completion.name() + "\" is " + kind(form.completion) +
                                 "; they are two strings or two lists of messages")
        .key(form.table + ".format")
        .help("set " + form.table +
              ".format = \"messages\": a string is a message of the user or the assistant then");
  }
  Row out;
  out.kind = form.chats ? RowKind::messages : RowKind::prompt_completion;
  out.of_strings = prompt == nullptr && completion == nullptr;
  if (form.history) read_history(out, row, where);
  if (prompt != nullptr)
    add_messages(out, *prompt, form.by_fields, where, form.prompt.name());
  else
    add_text(out, "user", form.prompt.text(row, where, form.table), form.prompt.name());
  const size_t at = out.messages.as_list().size();
  // Answers in a prompt are none that are learnt.
  if (prompt != nullptr) out.completion_at = at;
  if (completion != nullptr) {
    add_messages(out, *completion, form.by_fields, where, form.completion.name());
    if (at == out.messages.as_list().size())
      throw refused_row(where, "\"" + form.completion.name() + "\" is empty");
    if (form.by_fields && out.messages.as_list()[at].get("role")->as_string() != "assistant")
      throw refused_row(where, out.names[at] + " is of the role \"" +
                                   out.messages.as_list()[at].get("role")->as_string() +
                                   "\", and not an answer to the prompt")
          .key(form.table + ".fields")
          .help("a column that holds the whole conversation is one of messages: set " + form.table +
                ".fields = { messages = \"" + form.completion.name() + "\" }");
  } else {
    add_text(out, "assistant", form.completion.text(row, where, form.table),
             form.completion.name());
  }
  read_beside(out, row, form, where);
  find_unread(out, row, form,
              {"tools", "chat_template_kwargs", form.history ? "history" : "tools"});
  return out;
}

}  // namespace

Row read_row(const Value& row, const Form& form, const std::string& where) {
  check_form(row, form, where);
  Row out = form.shape() == Form::Shape::conversation ? read_conversation(row, form, where)
            : form.shape() == Form::Shape::pair       ? read_pair(row, form, where)
                                                      : read_text(row, form, where);
  read_weight(out, row, form, where);
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
      throw refused_row(begin, message);
    const char* const rest = std::from_chars(end + 1, message.data() + message.size(), place).ptr;
    if (within == 1) place += column - 1;
    const std::string where = file + ":" + std::to_string(line + within - 1);
    Error placed(ErrorCode::bad_dataset,
                 where + ":" + std::to_string(place) +
                     message.substr(static_cast<size_t>(rest - message.data())));
    // A line of an object that was written over several, or that was cut off.
    if (message.ends_with("incomplete JSON"))
      placed.help(
          "a row is an object on one line, and this one does not end there: jq -c 'if type == "
          "\"array\" then .[] else . end' '" +
          file + "' > rows.jsonl writes each on a line");
    if (message.ends_with("with nothing behind it")) placed.help("remove that comma");
    throw at_row(std::move(placed), where, place);
  }
}

}  // namespace meshwright::jsonl
