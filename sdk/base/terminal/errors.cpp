#include <algorithm>
#include <boost/json/array.hpp>
#include <filesystem>
#include <fstream>
#include <optional>

#include "sdk/base/terminal/report.h"

namespace meshwright::report {
namespace {

namespace json = boost::json;

// The line of the file a value came from; nothing when the file has changed or cannot be read any
// more.
std::optional<std::string> source_line(const Origin& origin) {
  constexpr std::uintmax_t kLargest = 64 << 20;
  std::error_code ignored;
  if (origin.file.empty() || origin.line < 1 ||
      !std::filesystem::is_regular_file(origin.file, ignored))
    return std::nullopt;
  if (std::filesystem::file_size(origin.file, ignored) > kLargest) return std::nullopt;
  std::ifstream file(origin.file);
  std::string line;
  for (int i = 0; i < origin.line; ++i)
    if (!std::getline(file, line)) return std::nullopt;
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return line;
}

// Byte at which the column (counted in code points, from 1) starts.
size_t byte_of_column(std::string_view line, int column) {
  size_t at = 0;
  for (int seen = 1; at < line.size(); ++at) {
    bool starts_a_character = (static_cast<unsigned char>(line[at]) & 0xc0) != 0x80;
    if (starts_a_character && seen++ == column) return at;
  }
  return at;
}

// What stands at `at`: a string with its quotes, a list up to its bracket, or a run of word
// characters.
std::string_view token_at(std::string_view line, size_t at) {
  std::string_view rest = line.substr(std::min(at, line.size()));
  if (rest.empty()) return rest;
  char opening = rest[0];
  if (opening == '"' || opening == '\'' || opening == '[' || opening == '{') {
    char closing = opening == '[' ? ']' : opening == '{' ? '}' : opening;
    for (size_t i = 1; i < rest.size(); ++i) {
      if (opening == '"' && rest[i] == '\\')
        ++i;
      else if (rest[i] == closing)
        return rest.substr(0, i + 1);
    }
  }
  size_t end = rest.find_first_of(" \t,=#]}");
  return rest.substr(0, std::max<size_t>(1, std::min(end, rest.size())));
}

std::string gutter(const Style& style, std::string_view text) {
  return paint(style, Tone::blue, text);
}

// The line and the caret under it. Long lines are cut to a window around the caret.
std::string quote_source(const Style& style, const Origin& origin, const std::string& margin) {
  std::optional<std::string> line = source_line(origin);
  if (!line) return {};
  size_t at = byte_of_column(*line, std::max(origin.column, 1));
  std::string before = printable(std::string_view(*line).substr(0, at));
  std::string marked = printable(token_at(*line, at));
  std::string after = printable(
      std::string_view(*line).substr(std::min(at + token_at(*line, at).size(), line->size())));
  size_t room = static_cast<size_t>(std::max(style.width, 40)) - margin.size() - 4;
  const char* dots = style.unicode ? "…" : "...";
  if (display_width(before) > room / 2) {
    std::vector<std::string> pieces = wrap(before, room / 2);
    before =
        dots + pieces.back() + (before.back() == ' ' && pieces.back().back() != ' ' ? " " : "");
  }
  if (display_width(before) + display_width(marked) > room)
    marked = wrap(marked, room - display_width(before) - 3).front() + dots;
  if (size_t left = room - std::min(room, display_width(before) + display_width(marked));
      display_width(after) > left)
    after = left > 4 ? wrap(after, left - 3).front() + dots : std::string();
  std::string number = std::to_string(origin.line);
  std::string out = gutter(style, margin + " |") + '\n';
  out +=
      gutter(style, pad_left(number, margin.size()) + " |") + ' ' + before + marked + after + '\n';
  if (origin.column > 0) {
    std::string carets(std::max<size_t>(1, display_width(marked)), '^');
    out += gutter(style, margin + " |") + ' ' + std::string(display_width(before), ' ') +
           paint(style, Tone::red, carets) + '\n';
  }
  return out;
}

std::string place(const Error& error) {
  const Origin& origin = error.origin();
  switch (origin.source) {
    case Origin::Source::command_line:
      return error.key().empty() ? "the command line" : "--set " + error.key();
    case Origin::Source::environment:
      return "the environment";
    case Origin::Source::builtin:
    case Origin::Source::file:
    case Origin::Source::api:
      break;
  }
  std::string text = origin.file;
  if (!text.empty() && origin.line > 0) {
    text += ':' + std::to_string(origin.line);
    if (origin.column > 0) text += ':' + std::to_string(origin.column);
  }
  return text;
}

// A label and a text whose further lines are indented below the first.
std::string item(const Style& style, const std::string& margin, std::string_view label,
                 std::string_view text) {
  std::string head = margin + " = ";
  std::string out = gutter(style, head) + paint(style, Tone::bold, std::string(label) + ":") + ' ';
  std::string indent(head.size() + label.size() + 2, ' ');
  for (char c : printable(text)) {
    out += c;
    if (c == '\n') out += indent;
  }
  return out + '\n';
}

json::object error_json(const Error& error) {
  const Origin& origin = error.origin();
  bool in_file = !origin.file.empty() && origin.source != Origin::Source::command_line;
  auto number = [&](int n) { return in_file && n > 0 ? json::value(n) : json::value(nullptr); };
  auto texts = [](const std::vector<std::string>& from) {
    json::array out;
    for (const std::string& text : from) out.emplace_back(printable(text));
    return out;
  };
  return {{"code", code_string(error.code())},
          {"message", printable(error.message())},
          {"key", error.key().empty() ? json::value(nullptr) : json::value(printable(error.key()))},
          {"file", in_file ? json::value(printable(origin.file)) : json::value(nullptr)},
          {"line", number(origin.line)},
          {"column", number(origin.column)},
          {"help", texts(error.helps())},
          {"notes", texts(error.notes())}};
}

}  // namespace

std::string format_error(const Style& style, const Error& error) {
  std::string out = paint(style, Tone::red, "error[" + code_string(error.code()) + "]") + ": " +
                    paint(style, Tone::bold, printable(error.message())) + '\n';
  // A message that begins with its place (a row of data) has said it, and a row may be of any
  // length.
  const std::string where = place(error);
  const bool said = !where.empty() && error.message().starts_with(where + ":");
  const Origin origin = said ? Origin{} : error.origin();
  std::string margin(origin.line > 0 ? std::to_string(origin.line).size() : 1, ' ');
  if (!where.empty() && !said) out += margin + gutter(style, "--> ") + printable(where) + '\n';
  std::string source = quote_source(style, origin, margin);
  out += source;
  if (!source.empty() && !(error.notes().empty() && error.helps().empty()))
    out += gutter(style, margin + " |") + '\n';
  for (const std::string& note : error.notes()) out += item(style, margin, "note", note);
  for (const std::string& help : error.helps()) out += item(style, margin, "help", help);
  return out;
}

std::string format_notice(const Style& style, std::string_view text) {
  return paint(style, Tone::cyan, "notice") + ": " + printable(text) + '\n';
}

std::string format_warning(const Style& style, std::string_view text) {
  return paint(style, Tone::yellow, "warning") + ": " + printable(text) + '\n';
}

json::object errors_json(std::span<const Error> errors) {
  json::array all;
  for (const Error& error : errors) all.push_back(error_json(error));
  return {{"error", all.empty() ? json::value(nullptr) : all.front()}, {"errors", all}};
}

}  // namespace meshwright::report
