#include "sdk/base/terminal/report.h"

#include <stdio_ext.h>

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>

#include "sdk/base/files/utf8.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"

namespace meshwright::report {

std::string human_bytes(int64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes > -1024 && bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  // 1023.95 would round to 1024.0 of the smaller unit.
  while ((value >= 1023.95 || value <= -1023.95) && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return text::format("%.1f %s", value, kUnits[unit]);
}

std::string human_seconds(double seconds) {
  if (seconds >= 1) return text::format("%.2f s", seconds);
  if (seconds >= 1e-3) return text::format("%.1f ms", seconds * 1e3);
  return text::format("%.0f us", seconds * 1e6);
}

std::string human_count(int64_t count) { return text::grouped(count); }

std::string counted(int64_t count, std::string_view singular, std::string_view plural) {
  return human_count(count) + " " + std::string(count == 1 ? singular : plural);
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

WriteFailed::WriteFailed(const std::string& stream, int error)
    : closed_pipe_(error == EPIPE),
      what_("cannot write to " + stream + ": " + std::strerror(error)) {}

void Output::write(std::string_view text) { write_data(screened(text)); }

void Output::write_data(std::string_view bytes) {
  errno = 0;
  if (std::fwrite(bytes.data(), 1, bytes.size(), stream_) != bytes.size() && loss_ == Loss::noticed)
    throw WriteFailed(name_, errno == 0 ? EIO : errno);
}

void Output::flush() {
  errno = 0;
  if ((std::fflush(stream_) != 0 || std::ferror(stream_) != 0) && loss_ == Loss::noticed)
    throw WriteFailed(name_, errno == 0 ? EIO : errno);
}

void Output::give_up() {
  ::__fpurge(stream_);
  std::clearerr(stream_);
}

namespace {

using Rows = std::vector<std::vector<std::string>>;

constexpr size_t kGap = 2;             // columns between two cells
constexpr size_t kNarrowestCell = 12;  // cells are not broken finer than this

std::vector<size_t> natural_widths(const Rows& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
  }
  return widths;
}

// Takes what is too much from the widest left-aligned columns.
void narrow(std::vector<size_t>& widths, std::span<const size_t> right, size_t limit) {
  auto total = [&] {
    size_t sum = 0;
    for (size_t w : widths) sum += w + kGap;
    return sum - std::min(sum, kGap);
  };
  while (total() > limit) {
    size_t widest = widths.size();
    for (size_t i = 0; i < widths.size(); ++i)
      if (std::find(right.begin(), right.end(), i) == right.end() &&
          (widest == widths.size() || widths[i] > widths[widest]))
        widest = i;
    if (widest == widths.size() || widths[widest] <= kNarrowestCell) return;
    --widths[widest];
  }
}

// Further lines of a cell stand as far in as its first.
std::vector<std::string> wrap_indented(const std::string& cell, size_t width) {
  size_t indent = std::min(cell.find_first_not_of(' '), cell.size());
  if (indent >= width) return wrap(cell, width);
  std::vector<std::string> lines = wrap(cell.substr(indent), width - indent);
  for (std::string& line : lines) line.insert(0, indent, ' ');
  return lines;
}

}  // namespace

std::string table(const Style& style, const Rows& rows, std::span<const size_t> right) {
  std::vector<size_t> widths = natural_widths(rows);
  narrow(widths, right, static_cast<size_t>(std::max(style.width, 1)));
  std::string out;
  for (size_t r = 0; r < rows.size(); ++r) {
    std::vector<std::vector<std::string>> cells;
    size_t height = 1;
    for (size_t i = 0; i < rows[r].size(); ++i) {
      cells.push_back(wrap_indented(rows[r][i], widths[i]));
      height = std::max(height, cells.back().size());
    }
    for (size_t line = 0; line < height; ++line) {
      std::string text;
      for (size_t i = 0; i < cells.size(); ++i) {
        std::string cell = line < cells[i].size() ? cells[i][line] : std::string();
        if (r == 0) cell = paint(style, Tone::dim, cell);
        bool is_right = std::find(right.begin(), right.end(), i) != right.end();
        if (i > 0) text.append(kGap, ' ');
        text += is_right ? pad_left(cell, widths[i]) : pad(cell, widths[i]);
      }
      text.erase(text.find_last_not_of(' ') + 1);
      out += text + '\n';
    }
  }
  return out;
}

namespace {

namespace json = boost::json;

constexpr size_t kLine = 120;

bool is_scalar(const json::value& value) { return !value.is_object() && !value.is_array(); }

// JSON leaves some characters as they are that a terminal acts on: they stand as \u.... with the
// same meaning.
std::string text_of(const json::value& value) {
  const std::string plain = json::serialize(value);
  if (!value.is_string()) return plain;
  std::string out;
  for (size_t at = 0; at < plain.size();) {
    const auto [code, length] = base::character_at(plain, at);
    const std::string_view piece = std::string_view(plain).substr(at, length);
    if (code >= 0x7f && printable(piece).starts_with('\\'))
      out += text::format("\\u%04x", static_cast<unsigned>(code));
    else
      out += piece;
    at += length;
  }
  return out;
}

std::string one_line(const json::value& value) {
  if (const json::array* array = value.if_array()) {
    std::string out = "[";
    for (const json::value& item : *array) out += (out.size() > 1 ? ", " : "") + one_line(item);
    return out + "]";
  }
  if (const json::object* object = value.if_object()) {
    std::string out = "{";
    for (const auto& [key, item] : *object)
      out += (out.size() > 1 ? ", " : "") + text_of(json::string(key)) + ": " + one_line(item);
    return out + "}";
  }
  return text_of(value);
}

bool add_if_short(const json::value& value, size_t indent, std::string& out) {
  std::string line = one_line(value);
  if (line.size() + indent > kLine) return false;
  out += line;
  return true;
}

// Short values stay on one line; a list of rows has one row a line.
void print(const json::value& value, size_t indent, std::string& out) {
  std::string inner(indent + 2, ' ');
  if (const json::array* array = value.if_array()) {
    bool flat = std::all_of(array->begin(), array->end(), is_scalar);
    if (flat && add_if_short(value, indent, out)) return;
    out += "[";
    size_t column = kLine;
    for (size_t i = 0; i < array->size(); ++i) {
      if (i > 0) out += ',';
      const json::value& item = (*array)[i];
      std::string line = flat ? one_line(item) : std::string();
      if (flat && column + line.size() + 2 <= kLine) {
        out += ' ' + line;
        column += line.size() + 2;
      } else {
        out += '\n' + inner;
        column = inner.size() + line.size() + 1;
        flat ? void(out += line) : print(item, indent + 2, out);
      }
    }
    out += '\n' + std::string(indent, ' ') + ']';
  } else if (const json::object* object = value.if_object()) {
    if (object->empty()) {
      out += "{}";
      return;
    }
    if (indent > 0 && object->size() <= 12 && add_if_short(value, indent, out)) return;
    out += "{";
    bool first = true;
    for (const auto& [key, item] : *object) {
      out += (first ? "\n" : ",\n") + inner + text_of(json::string(key)) + ": ";
      print(item, indent + 2, out);
      first = false;
    }
    out += '\n' + std::string(indent, ' ') + '}';
  } else {
    out += text_of(value);
  }
}

}  // namespace

std::string pretty_json(const json::value& value) {
  std::string out;
  print(value, 0, out);
  return out + '\n';
}

namespace {

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

void tell_torchrun(const Error& error, const Variables& variables) {
  std::optional<std::string> path = variables("TORCHELASTIC_ERROR_FILE");
  std::error_code failed;
  if (!path || path->empty() || std::filesystem::exists(*path, failed)) return;
  boost::json::object out;
  out["message"] = format_error(Style{.colour = false}, error);
  out["timestamp"] = static_cast<int64_t>(std::time(nullptr));
  // Written aside, since torchrun takes a file that it cannot parse for an error of its own.
  std::string aside = *path + ".part";
  {
    std::ofstream file(aside);
    file << boost::json::serialize(out);
    if (!file.flush()) failed = std::make_error_code(std::errc::io_error);
  }
  if (!failed) std::filesystem::rename(aside, *path, failed);
  if (failed) std::filesystem::remove(aside, failed);
}

std::string vain_retries(int exit_status, const Variables& variables) {
  // As train --max-restarts: a lost host or a busy port (4, 6) and what is not understood (1) may
  // be gone at the next attempt.
  if (exit_status != 2 && exit_status != 3 && exit_status != 5 && exit_status != 7) return "";
  auto number = [&](const char* name) { return std::atoll(variables(name).value_or("0").c_str()); };
  long long left = number("TORCHELASTIC_MAX_RESTARTS") - number("TORCHELASTIC_RESTART_COUNT");
  if (!variables("TORCHELASTIC_RUN_ID") || variables("LOCAL_RANK").value_or("0") != "0" ||
      left <= 0)
    return "";
  return "torchrun starts the ranks again whatever the exit status, " + std::to_string(left) +
         (left == 1 ? " more time" : " more times") +
         ", and this will come again: end torchrun, or start it without --max-restarts";
}

std::string last_words_for_torchrun(const Error& error) {
  Variables process = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
  tell_torchrun(error, process);
  return vain_retries(exit_status(error.code()), process);
}

}  // namespace meshwright::report
