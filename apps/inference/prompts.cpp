#include "apps/inference/prompts.h"

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "apps/inference/chat_format.h"
#include "meshwright/error.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/files/json_codec.h"

namespace meshwright::generate {

namespace json = boost::json;

namespace {

constexpr const char* kRowHelp =
    R"(a row is {"prompt": "Once upon a time"}, {"tokens": [1, 15043]} or {"messages": [{"role": "user", "content": "Hello"}]})";

Error bad_row(const std::string& what) {
  return Error(ErrorCode::bad_dataset, what).help(kRowHelp);
}

json::object columns_of(std::string_view line) {
  json::value read;
  try {
    read = base::parse_strictly(line, {.depth = 32, .elements = size_t{1} << 20});
  } catch (const base::JsonProblem& problem) {
    throw bad_row("the row is no JSON object: at byte " + std::to_string(problem.offset) + ": " +
                  problem.what);
  }
  if (!read.is_object()) throw bad_row("the row is no JSON object");
  return std::move(read.as_object());
}

// What the one column says of what is asked.
std::vector<int64_t> prompt_of(const json::object& columns, const Source& source, const Ask& ask,
                               std::optional<ChatFormat>& format) {
  Request request = ask;
  std::string found;
  for (const char* name : {"prompt", "tokens", "messages"})
    if (columns.contains(name)) {
      if (!found.empty())
        throw bad_row("the row has \"" + found + "\" and \"" + name +
                      "\": one of them says what is asked");
      found = name;
    }
  if (found.empty())
    throw bad_row("the row has neither \"prompt\" nor \"tokens\" nor \"messages\"");
  const json::value& value = columns.at(found);
  if (found == "messages") {
    if (!format) format.emplace(source, ask.chat_template, ask.adapter);
    json::object asked{{"messages", value}};
    if (columns.contains("tools")) asked["tools"] = columns.at("tools");
    Conversation conversation = parse_messages(json::serialize(asked), "the row");
    put_system(conversation, ask.system, "the row");
    return format->prompt(conversation);
  }
  if (found == "prompt") {
    if (!value.is_string()) throw bad_row("\"prompt\" is no string");
    request.prompt = std::string(value.as_string());
    request.tokens.reset();
    return source.prompt(request);
  }
  if (!value.is_array()) throw bad_row("\"tokens\" is no list of ids");
  std::string list;
  for (const json::value& id : value.as_array()) {
    if (!id.is_int64()) throw bad_row("\"tokens\" is no list of ids");
    list += (list.empty() ? "" : ",") + std::to_string(id.as_int64());
  }
  request.tokens = list;
  request.prompt.reset();
  return source.prompt(request);
}

}  // namespace

Prompts read_prompts(const Source& source, const Ask& ask) {
  check_ways(ask);
  const std::string file = *ask.prompts;
  const std::string text = base::read_foreign(file, base::kLargeFile, ErrorCode::file_unreadable);
  Prompts out;
  std::optional<ChatFormat> format;
  int number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      Prompts::Row row{columns_of(line), {}};
      row.prompt = prompt_of(row.columns, source, ask, format);
      row.conversation = row.columns.contains("messages");
      out.rows.push_back(std::move(row));
    } catch (Error& error) {
      throw Error(error).at({Origin::Source::file, file, number, 0});
    }
  }
  if (out.rows.empty()) throw bad_row(file + " has no row");
  out.conversations = format.has_value();
  if (!format) refuse_for_texts(ask, "the rows of " + file + " are no conversations");
  out.stops = source.stops(ask);
  if (format) out.turn_stops = format->stops(source, ask);
  return out;
}

}  // namespace meshwright::generate
