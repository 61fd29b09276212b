#include "columns.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>

#include "sdk/base/words.h"

namespace meshwright::jsonl {

using chat::Value;

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

Error at_row(Error error, std::string_view where, int64_t column) {
  const size_t colon = where.rfind(':');
  int line = 0;
  if (colon != std::string_view::npos)
    std::from_chars(where.data() + colon + 1, where.data() + where.size(), line);
  error.at({Origin::Source::file, std::string(where.substr(0, colon)), line,
            static_cast<int>(std::min<int64_t>(column, std::numeric_limits<int>::max()))});
  return error;
}

Error refused_row(const std::string& where, const std::string& what) {
  return at_row(Error(ErrorCode::bad_dataset, where + ": " + what), where);
}

const Value* member(const Value& row, std::string_view key) {
  const Value* value = row.get(key);
  return value == nullptr || value->is_none() ? nullptr : value;
}

namespace {

std::string in_quotes(std::string_view text) { return "\"" + std::string(text) + "\""; }

// "a, b (null)"
std::string keys_of(const Value& row) {
  std::string out;
  for (const auto& [key, value] : row.as_dict())
    out += (out.empty() ? "" : ", ") + key + (value.is_none() ? " (null)" : "");
  return out.empty() ? "none" : out;
}

// How far a path leads into a row.
struct Walk {
  const Value* at;        // what is there; of a path that leads nowhere, how far it leads
  std::string_view rest;  // what `at` does not have; "": it led to its end
};

// A name may have dots itself, so that what is left of a path is tried as one name first.
Walk walk(const Value& row, std::string_view path) {
  const Value* at = &row;
  for (;;) {
    if (const Value* whole = at->get(path)) return {whole, {}};
    const size_t dot = path.find('.');
    const std::string_view name = path.substr(0, dot);
    const Value* next = at->get(name);
    if (at->is_list())
      if (const auto number = text::to_number<size_t>(name);
          number && *number < at->as_list().size())
        next = &at->as_list()[*number];
    if (next == nullptr) return {at, path};
    if (dot == std::string_view::npos) return {next, {}};
    at = next;
    path.remove_prefix(dot + 1);
  }
}

std::optional<std::string> as_text(const Value& value, bool numbers) {
  if (value.is_string()) return value.as_string();
  if (!numbers) return std::nullopt;
  if (value.is_integer()) return std::to_string(value.as_integer());
  if (value.is_big_integer()) return value.as_digits();
  if (value.is_real()) return chat::python_float(value.as_real());
  return std::nullopt;
}

std::string_view without_blanks_before(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin);
}

}  // namespace

Field Field::parse(std::string_view text, std::string part) {
  Field out;
  out.part_ = std::move(part);
  auto column = [&](std::string before, std::string_view name) {
    const bool optional = name.ends_with('?');
    if (optional) name.remove_suffix(1);
    if (name.empty()) throw std::string("it names no column");
    out.pieces_.push_back({std::move(before), std::string(name), optional});
  };
  if (text.find_first_of("{}") == std::string_view::npos) {
    column("", text);
    return out;
  }
  out.joins_ = true;
  std::string before;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c != '{' && c != '}') {
      before += c;
    } else if (at + 1 < text.size() && text[at + 1] == c) {
      before += c;
      ++at;
    } else {
      const size_t end = c == '{' ? text.find('}', at) : std::string_view::npos;
      if (end == std::string_view::npos)
        throw std::string("a ") + c + " has no other beside it: {column} stands for a column, {{ " +
            "and }} for braces";
      column(std::move(before), text.substr(at + 1, end - at - 1));
      before.clear();
      at = end;
    }
  }
  out.after_ = std::move(before);
  if (out.pieces_.empty()) throw std::string("it names no column");
  return out;
}

std::string Field::columns(const Value& row) const {
  std::string out;
  for (const Piece& piece : pieces_)
    if (walk(row, piece.path).rest.empty()) out += (out.empty() ? "" : ", ") + piece.path;
  return out;
}

bool Field::reads(std::string_view key) const {
  return std::any_of(pieces_.begin(), pieces_.end(), [&](const Piece& piece) {
    const std::string_view path = piece.path;
    return path == key ||
           (path.size() > key.size() && path.starts_with(key) && path[key.size()] == '.');
  });
}

void Field::add_paths(std::vector<base::Columns::Path>& to) const {
  for (const Piece& piece : pieces_) to.push_back({piece.path, piece.optional});
}

const Value* Field::find(const Value& row, const Piece& piece, const std::string& where,
                         const std::string& table) const {
  const Walk found = walk(row, piece.path);
  if (found.rest.empty()) return found.at->is_none() ? nullptr : found.at;
  if (piece.optional) return nullptr;
  // "data", of "data.question" where data has no question.
  std::string before = piece.path.substr(0, piece.path.size() - found.rest.size());
  const std::string holder =
      before.empty() ? "the row" : in_quotes(before.substr(0, before.size() - 1));
  const std::string missing(found.rest.substr(0, found.rest.find('.')));
  if (!found.at->is_dict())
    throw refused_row(
        where, holder + " is " + found.at->kind_name() + " without " + in_quotes(missing) +
                   (found.at->is_list()
                        ? ": it has " + text::counted(std::ssize(found.at->as_list()), "item")
                        : std::string()))
        .key(table + ".fields");
  Error error = refused_row(
      where, holder + " has no " + in_quotes(missing) + "; its keys: " + keys_of(*found.at));
  error.key(table + ".fields");
  std::vector<std::string> names;
  for (const auto& [key, value] : found.at->as_dict()) names.push_back(key);
  const std::string setting = "set " + table + ".fields." + part_ + " = ";
  if (const std::string near = nearest_name(missing, names); !near.empty())
    error.help("did you mean " + in_quotes(near) + "? " + setting +
               (joins_ ? "\"...{" + before + near + "}...\"" : in_quotes(before + near)));
  else if (!names.empty())
    error.help("name one of its columns: " + setting + in_quotes(before + names.front()));
  error.help("a column that rows may lack has a ? behind its name: " +
             (joins_ ? "{" + piece.path + "?}" : piece.path + "?"));
  throw error;
}

const Value* Field::value(const Value& row, const std::string& where,
                          const std::string& table) const {
  return find(row, pieces_.front(), where, table);
}

std::string Field::text(const Value& row, const std::string& where, const std::string& table,
                        bool numbers) const {
  std::string out;
  bool any = false;
  for (const Piece& piece : pieces_) {
    const Value* value = find(row, piece, where, table);
    if (value == nullptr) continue;
    std::optional<std::string> said = as_text(*value, numbers);
    if (!said)
      throw refused_row(
          where, in_quotes(piece.path) + " is " + value->kind_name() + ", where a string belongs");
    if (said->empty()) continue;
    out += any || &piece == &pieces_.front() ? std::string_view(piece.before)
                                             : without_blanks_before(piece.before);
    out += *said;
    any = true;
  }
  return any ? out + after_ : out;
}

void Asked::set(const std::string& part, const std::string& value) {
  const std::string key = table + ".fields." + part;
  const std::pair<const char*, Field*> parts[] = {{"prompt", &prompt}, {"completion", &completion},
                                                  {"system", &system}, {"messages", &messages},
                                                  {"text", &text},     {"weight", &weight}};
  for (const auto& [name, field] : parts) {
    if (part != name) continue;
    try {
      *field = Field::parse(value, part);
    } catch (const std::string& what) {
      throw Error(ErrorCode::bad_choice, key + " = " + in_quotes(value) + ": " + what)
          .key(key)
          .help("set " + key +
                " to the path of a column, \"data.question\", or to a text with columns in it, "
                "\"{instruction}\\n{input?}\"");
    }
    if (field->joins() && (field == &messages || field == &weight))
      throw Error(ErrorCode::bad_choice, key + " is one column, and not a text with columns in it")
          .key(key)
          .help("set " + key + " = " + in_quotes(field->name()));
    return;
  }
  std::vector<std::string> names;
  for (const auto& [name, field] : parts) names.emplace_back(name);
  Error error(ErrorCode::unknown_key, key + " is no part of a row: " + text::join(names, ", "));
  error.key(key);
  if (part == "chosen" || part == "rejected")
    throw error.help("preferences are not learnt; set " + table +
                     ".fields.completion = " + in_quotes(part == "chosen" ? value : "chosen") +
                     " to learn the answers chosen");
  if (const std::string near = nearest_name(part, names); !near.empty())
    error.help("did you mean " + table + ".fields." + near + "?");
  throw error;
}

void Asked::check() const {
  const bool pair = prompt.given() || completion.given();
  std::vector<std::string> shapes;
  if (messages.given()) shapes.emplace_back("messages");
  if (pair) shapes.emplace_back(prompt.given() ? "prompt" : "completion");
  if (text.given()) shapes.emplace_back("text");
  auto conflict = [&](const std::string& what, const std::string& help) {
    return Error(ErrorCode::conflict, what).key(table + ".fields").help(help);
  };
  if (shapes.size() > 1)
    throw conflict(
        table + ".fields names " + text::join(shapes, " and ") + ", which no row has together",
        "keep one: messages, prompt with completion, or text");
  if (text.given() && system.given())
    throw conflict(table + ".fields names text and system, and no template joins these two",
                   "put both into the text: set " + table + ".fields.text = \"{" + system.name() +
                       "}\\n{" + text.name() + "}\"");
  if (!format || shapes.empty()) return;
  const bool fits = *format == RowKind::text
                        ? text.given()
                        : !text.given() && (*format == RowKind::messages || !messages.given());
  if (!fits)
    throw conflict(table + ".format is \"" + std::string(name_of(*format)) + "\", but " + table +
                       ".fields names " + shapes.front(),
                   "leave " + table + ".format out");
}

base::Columns Asked::columns() const {
  base::Columns out{{},
                    table + ".fields",
                    "name the columns that are to be read: set " + table +
                        ".fields.messages = \"messages\", or .text, or .prompt and .completion"};
  if (!messages.given() && !text.given() && !(prompt.given() && completion.given())) return out;
  for (const Field* field : {&prompt, &completion, &system, &messages, &text, &weight})
    field->add_paths(out.paths);
  for (const char* name : {"system", "system_prompt", "tools", "chat_template_kwargs"})
    out.paths.push_back({name, true});
  return out;
}

namespace {

using Shape = Form::Shape;
using Reading = Form::Reading;

// Keys of rows that hold messages.
constexpr std::string_view kConversations[] = {"messages", "conversations", "conversation"};

// Columns that are known as what is asked, with what may stand beside them, and as the answer. The
// first ones are the names of the parts.
struct KnownPrompt {
  std::string_view column, field;
};
constexpr KnownPrompt kPrompts[] = {{"prompt", "prompt"},
                                    {"question", "{context?}\n{question}"},
                                    {"query", "query"},
                                    {"instruction", "{instruction}\n{input?}\n{context?}"},
                                    {"input", "input"}};
constexpr std::string_view kCompletions[] = {"completion", "response", "answer", "output"};
constexpr size_t kConversation = 2, kInstruction = 3, kInput = 4, kOutput = 3;

std::vector<size_t> prompts_in(const Value& row) {
  std::vector<size_t> out;
  for (size_t i = 0; i < std::size(kPrompts); ++i) {
    // It stands beside an instruction.
    if (i == kInput && !out.empty() && out.back() == kInstruction) continue;
    if (member(row, kPrompts[i].column) != nullptr) out.push_back(i);
  }
  return out;
}

bool is_ours(const Reading& reading) {
  return reading.shape != Shape::pair || (reading.prompt == 0 && reading.completion == 0);
}

std::string kind_of(const Reading& reading) {
  if (reading.shape == Shape::conversation) return "messages";
  if (reading.shape == Shape::text) return "text";
  if (is_ours(reading)) return "prompt_completion";
  if (reading.prompt == kInstruction && reading.completion == kOutput) return "alpaca";
  return std::string(kPrompts[reading.prompt].column) + "/" +
         std::string(kCompletions[reading.completion]);
}

// All ways to read a row; messages and conversations come before all others, then a prompt with a
// completion, which rows have had as long as these are read.
std::vector<Reading> readings_of(const Value& row, std::optional<RowKind> format) {
  std::vector<Reading> out;
  auto wants = [&](RowKind kind) { return !format || *format == kind; };
  if (wants(RowKind::messages)) {
    for (size_t i = 0; i < kConversation; ++i)
      if (member(row, kConversations[i]) != nullptr)
        out.push_back({.shape = Shape::conversation, .key = i});
    if (!out.empty()) return out;
  }
  if (!format || *format != RowKind::text) {
    if (member(row, "prompt") != nullptr && member(row, "completion") != nullptr)
      return {{.shape = Shape::pair}};
    if (const Value* held = member(row, kConversations[kConversation]);
        wants(RowKind::messages) && held != nullptr && held->is_list())
      out.push_back({.shape = Shape::conversation, .key = kConversation});
    for (const size_t prompt : prompts_in(row))
      for (size_t i = 0; i < std::size(kCompletions); ++i)
        if (member(row, kCompletions[i]) != nullptr)
          out.push_back({.shape = Shape::pair, .prompt = prompt, .completion = i});
  }
  if (wants(RowKind::text) && member(row, "text") != nullptr) out.push_back({.shape = Shape::text});
  return out;
}

Error of_another_kind(const std::string& where, const std::string& table, const Reading& row,
                      const std::string& wanted) {
  const std::string kind = kind_of(row);
  Error error = refused_row(where, "the row is of kind " + kind +
                                       ", but the rows of this data set are of kind " + wanted);
  error.key(table + ".format").help("put rows of one kind into a data set");
  if (is_ours(row))
    error.help("set " + table + ".format = " + in_quotes(kind) + ", if the rows are of that kind");
  return error;
}

// Whether it is a list of objects, as conversations are.
bool is_conversation(const Value& value) {
  return value.is_list() && !value.as_list().empty() && value.as_list().front().is_dict();
}

// Whether a column of that name is read without `fields`.
bool is_known(std::string_view name) {
  return name == "text" || std::ranges::find(kConversations, name) != std::end(kConversations) ||
         std::ranges::find(kCompletions, name) != std::end(kCompletions) ||
         std::ranges::find(kPrompts, name, &KnownPrompt::column) != std::end(kPrompts);
}

// The settings of `fields` that read columns of a row that has none of the names that are known: by
// what they hold.
std::string possible_fields(const Value& row) {
  std::vector<std::string> texts;
  for (const auto& [key, value] : row.as_dict()) {
    if (is_conversation(value)) return "messages = " + in_quotes(key);
    if (value.is_string()) texts.push_back(key);
  }
  if (texts.empty()) return "prompt = \"COLUMN\", completion = \"COLUMN\"";
  if (texts.size() == 1) return "text = " + in_quotes(texts[0]);
  return "prompt = " + in_quotes(texts[0]) + ", completion = " + in_quotes(texts[1]);
}

// Preferences, of which one answer may be learnt.
Error preferences(const Value& row, const std::string& where, const std::string& table) {
  const Value& chosen = *member(row, "chosen");
  const std::vector<size_t> prompts = prompts_in(row);
  std::string fields = "completion = \"chosen\"";
  const Value* first = is_conversation(chosen) ? chosen.as_list().front().get("role") : nullptr;
  const bool whole = first != nullptr && first->is_string() && first->as_string() != "assistant";
  if (whole || (is_conversation(chosen) && prompts.empty()))
    fields = "messages = \"chosen\"";
  else if (prompts.empty())
    fields = "text = \"chosen\"";
  else if (prompts.front() != 0)
    fields = "prompt = " + in_quotes(kPrompts[prompts.front()].column) + ", " + fields;
  return refused_row(where,
                     "the row has a \"chosen\" and a \"rejected\" answer: preferences are not "
                     "learnt; its keys: " +
                         keys_of(row))
      .key(table + ".fields")
      .help("to learn the answers chosen, set " + table + ".fields = { " + fields + " }");
}

Error of_no_kind(const Value& row, const std::string& where, const std::string& table) {
  if (member(row, "chosen") != nullptr && member(row, "rejected") != nullptr)
    return preferences(row, where, table);
  for (const auto& [key, value] : row.as_dict())
    if (value.is_none() && is_known(key))
      return refused_row(where, in_quotes(key) + " is null")
          .key(table + ".fields")
          .help("write what belongs there, \"\" for nothing, or leave the row out");
  return refused_row(where,
                     "the row has neither \"messages\", nor \"prompt\" and \"completion\", nor "
                     "\"text\"; its keys: " +
                         keys_of(row))
      .key(table + ".fields")
      .help("say which column is what: set " + table + ".fields = { " + possible_fields(row) + " }")
      .help(
          "known without that: messages, conversations or conversation; one of prompt, question, "
          "query, instruction (with input) and input beside one of completion, response, answer "
          "and output; text");
}

// The setting that has a row read in this way, whatever else it could be.
std::string setting_of(const Reading& reading, const std::string& table) {
  const std::string set = "set " + table;
  if (reading.shape == Shape::text) return set + ".format = \"text\" to learn all of \"text\"";
  if (reading.shape == Shape::conversation)
    return set + ".fields = { messages = " + in_quotes(kConversations[reading.key]) + " }";
  const KnownPrompt& prompt = kPrompts[reading.prompt];
  std::string field(prompt.field);
  for (size_t at = 0; (at = field.find('\n', at)) != std::string::npos;)
    field.replace(at, 1, "\\n");
  return set + ".fields = { prompt = " + in_quotes(field) +
         ", completion = " + in_quotes(kCompletions[reading.completion]) + " }";
}

std::string sides_of(const Reading& reading) {
  if (reading.shape == Shape::text) return "a text (text)";
  if (reading.shape == Shape::conversation)
    return "a conversation (" + std::string(kConversations[reading.key]) + ")";
  return "a question with its answer (" + std::string(kPrompts[reading.prompt].column) + ", " +
         std::string(kCompletions[reading.completion]) + ")";
}

Error ambiguous(const std::vector<Reading>& readings, const std::string& where,
                const std::string& table) {
  std::string ways;
  for (const Reading& one : readings) ways += (ways.empty() ? "" : ", or ") + sides_of(one);
  Error error = refused_row(where, "the row can be read as " + ways);
  error.key(table + ".fields");
  for (const Reading& one : readings) error.help(setting_of(one, table));
  return error;
}

// The known column for a part of a pair that `fields` does not name.
Field other_side(const Value& row, bool prompt, const std::string& where,
                 const std::string& table) {
  const std::string part = prompt ? "prompt" : "completion";
  std::vector<std::pair<std::string, std::string>> found;  // column, field
  if (prompt) {
    for (const size_t i : prompts_in(row))
      found.emplace_back(kPrompts[i].column, kPrompts[i].field);
  } else {
    for (const std::string_view column : kCompletions)
      if (member(row, column) != nullptr) found.emplace_back(column, column);
  }
  if (!found.empty() && (found.size() == 1 || found.front().first == part))
    return Field::parse(found.front().second, part);
  std::vector<std::string> names;
  for (const auto& [column, field] : found) names.push_back(in_quotes(column));
  throw refused_row(
      where, table + ".fields names no " + part + ", and the row has " +
                 (names.empty() ? "no column known as one"
                                : "several columns known as one: " + text::join(names, ", ")) +
                 "; its keys: " + keys_of(row))
      .key(table + ".fields")
      .help("set " + table + ".fields." + part + " = " +
            (found.empty() ? "\"COLUMN\"" : in_quotes(found.front().first)));
}

// What a row's columns become: "instruction, input -> user; output -> assistant".
std::string told_of(const Form& form, const Value& row) {
  std::string out;
  auto tell = [&](const Field& field, const char* part) {
    if (!field.given()) return;
    if (const std::string columns = field.columns(row); !columns.empty())
      out += (out.empty() ? "" : "; ") + columns + " -> " + part;
  };
  switch (form.shape()) {
    case Shape::conversation:
      if (form.messages.given())
        tell(form.messages, "messages");
      else if (form.reading.key > 0)
        out += std::string(kConversations[form.reading.key]) + " -> messages";
      if (form.by_fields || form.reading.key > 0) tell(form.system, "system");
      break;
    case Shape::pair:
      if (!form.by_fields && !form.chats && is_ours(form.reading) && !form.weight.given())
        return {};
      if (form.chats) tell(form.system, "system");
      if (form.history && member(row, "history") != nullptr)
        out += std::string(out.empty() ? "" : "; ") + "history -> earlier turns";
      tell(form.prompt, form.chats ? "user" : "prompt");
      tell(form.completion, form.chats ? "assistant" : "completion");
      break;
    case Shape::text:
      if (form.by_fields) tell(form.text, "text");
      break;
  }
  tell(form.weight, "weight");
  if (out.empty()) return {};
  if (form.by_fields) return "rows are read by " + form.table + ".fields: " + out;
  if (form.shape() == Shape::conversation && form.reading.key > 0)
    return "rows are ShareGPT: " + out;
  return "rows are " + kind_of(form.reading) + ": " + out;
}

}  // namespace

Form form_of(const Value& row, const Asked& asked, const std::string& where) {
  if (!row.is_dict())
    throw refused_row(where, "the row is " + row.kind_name() + ", and not an object");
  Form out;
  out.format = asked.format;
  out.table = asked.table;
  out.messages = asked.messages;
  out.text = asked.text;
  out.prompt = asked.prompt;
  out.completion = asked.completion;
  out.system = asked.system;
  out.weight = asked.weight;
  bool ours = false;  // strings that are named as the parts, which no template joins
  if (asked.messages.given() || asked.text.given()) {
    out.by_fields = true;
    out.reading.shape = asked.text.given() ? Shape::text : Shape::conversation;
  } else if (asked.prompt.given() || asked.completion.given()) {
    out.by_fields = true;
    out.reading.shape = Shape::pair;
    if (!out.prompt.given()) out.prompt = other_side(row, true, where, out.table);
    if (!out.completion.given()) out.completion = other_side(row, false, where, out.table);
  } else {
    const std::vector<Reading> readings = readings_of(row, asked.format);
    if (readings.empty()) {
      const std::vector<Reading> others = readings_of(row, std::nullopt);
      if (others.empty()) throw of_no_kind(row, where, out.table);
      throw of_another_kind(where, out.table, others.front(),
                            std::string(name_of(asked.format.value_or(RowKind::text))));
    }
    if (readings.size() > 1) throw ambiguous(readings, where, out.table);
    out.reading = readings.front();
    ours = is_ours(out.reading);
    if (out.shape() == Shape::pair) {
      out.prompt = Field::parse(kPrompts[out.reading.prompt].field, "prompt");
      out.completion = Field::parse(kCompletions[out.reading.completion], "completion");
      out.history = out.reading.prompt == kInstruction;
    }
    if (out.shape() == Shape::text) out.text = Field::parse("text", "text");
  }
  // Not where it is asked for as part of the prompt; beside a text it is read by nobody.
  if (!out.system.given() && out.shape() != Shape::text &&
      !(out.prompt.given() && (out.prompt.reads("system") || out.prompt.reads("system_prompt"))))
    out.system = Field::parse(
        ours || out.shape() == Shape::conversation ? "system?" : "{system?}\n{system_prompt?}",
        "system");
  if (out.shape() == Shape::pair) {
    if (out.format)
      out.chats = *out.format == RowKind::messages;
    else if (!ours || asked.system.given())
      out.chats = true;
    else if (const Value* system = member(row, "system"))
      out.chats =
          row.get("prompt")->is_string() && system->is_string() && !system->as_string().empty();
  }
  out.told = told_of(out, row);
  return out;
}

void check_form(const Value& row, const Form& form, const std::string& where) {
  if (!row.is_dict())
    throw refused_row(where, "the row is " + row.kind_name() + ", and not an object");
  if (form.by_fields) return;
  const std::vector<Reading> readings = readings_of(row, form.format);
  for (const Reading& one : readings)
    if (one == form.reading ||
        (one.shape == Shape::conversation && form.shape() == Shape::conversation))
      return;
  if (!readings.empty())
    throw of_another_kind(where, form.table, readings.front(), kind_of(form.reading));
  const std::vector<Reading> others = readings_of(row, std::nullopt);
  if (!others.empty())
    throw of_another_kind(where, form.table, others.front(), kind_of(form.reading));
  // What a row of another program lacks is told by the column.
  if (is_ours(form.reading)) throw of_no_kind(row, where, form.table);
}

std::string conversation_key(const Value& row, const Form& form) {
  if (const std::string_view key = kConversations[form.reading.key]; member(row, key) != nullptr)
    return std::string(key);
  for (const std::string_view key : kConversations)
    if (member(row, key) != nullptr) return std::string(key);
  return std::string(kConversations[form.reading.key]);
}

}  // namespace meshwright::jsonl
