#include "engine/config/syntax.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace meshwright::config {
namespace {

// Skips a string that starts at `i`; returns the index behind it (or the end of the text).
size_t skip_string(std::string_view text, size_t i) {
  const char quote = text[i];
  const std::string triple(3, quote);
  if (text.substr(i, 3) == triple) {
    for (i += 3; i < text.size(); ++i) {
      if (quote == '"' && text[i] == '\\') {
        ++i;
      } else if (text.substr(i, 3) == triple) {
        i += 3;
        // A string may end in quotes of its own: """a"""" and """a""""".
        for (int extra = 0; extra < 2 && i < text.size() && text[i] == quote; ++extra) ++i;
        return i;
      }
    }
    return text.size();
  }
  for (++i; i < text.size() && text[i] != '\n'; ++i) {
    if (quote == '"' && text[i] == '\\')
      ++i;
    else if (text[i] == quote)
      return i + 1;
  }
  return std::min(i, text.size());
}

Place place_at(std::string_view text, size_t offset) {
  Place place{Origin::Source::file, 1, 1};
  for (size_t i = 0; i < offset && i < text.size(); ++i) {
    if (text[i] == '\n')
      ++place.line, place.column = 1;
    else if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80)
      ++place.column;
  }
  return place;
}

std::string_view line_at(std::string_view text, int line) {
  for (int i = 1; i < line; ++i) {
    size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  return text.substr(0, text.find_first_of("\r\n"));
}

int column_of(std::string_view line, size_t offset) { return place_at(line, offset).column; }

bool printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f; });
}

// The value as it was probably meant, for a word that is not TOML; "" when there is no good guess.
std::string meant_value(std::string_view word) {
  std::string lower = text::normal(word);
  if (lower == "true" || lower == "yes" || lower == "on") return "true";
  if (lower == "false" || lower == "no" || lower == "off") return "false";
  if (lower == "null" || lower == "none" || lower == "nil" || lower == "~") return "\"none\"";
  const bool word_like = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return text::is_alphanumeric(c) || std::string_view("_-./*:").find(c) != std::string_view::npos;
  });
  if (!word_like) return "";
  if (std::isdigit(static_cast<unsigned char>(word[0]))) {
    size_t zeros = word.find_first_not_of('0');
    std::string digits = zeros == std::string_view::npos ? "0" : std::string(word.substr(zeros));
    int64_t number = 0;
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error == std::errc() && end == digits.data() + digits.size()) return digits;
  }
  return '"' + std::string(word) + '"';
}

// `key = word` whose value does not parse: where the value stands, and the line as it should be.
bool mend_value(std::string_view line, const Place& place, Error& error, Place& better) {
  size_t equals = line.find('=');
  if (equals == std::string_view::npos || column_of(line, equals) > place.column) return false;
  std::string_view key = text::trim(line.substr(0, equals));
  size_t begin = line.find_first_not_of(" \t", equals + 1);
  if (begin == std::string_view::npos || key.empty() || !printable(key)) return false;
  std::string_view word = text::trim(line.substr(begin, line.find('#', begin) - begin));
  if (word.find('=') != std::string_view::npos || !printable(word)) return false;
  std::string value = meant_value(word);
  if (value.empty() || value == word) return false;
  if (parse_toml_value(word)) return false;
  error.help("write " + std::string(key) + " = " + value);
  better.column = column_of(line, begin);
  return true;
}

}  // namespace

std::optional<SyntaxProblem> check_limits(std::string_view text) {
  int depth = 0, dots = 0;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"' || c == '\'') {
      i = skip_string(text, i);
      continue;
    }
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size());
      continue;
    }
    if (c == '.') {
      if (++dots >= kMaxDepth)
        return SyntaxProblem{"a key of more than " + std::to_string(kMaxDepth) + " parts",
                             place_at(text, i)};
    } else if (std::string_view("=,[]{}\n").find(c) != std::string_view::npos) {
      dots = 0;
    }
    if (c == '[' || c == '{') {
      if (++depth > kMaxDepth)
        return SyntaxProblem{"nested deeper than " + std::to_string(kMaxDepth) + " levels",
                             place_at(text, i)};
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
    ++i;
  }
  return std::nullopt;
}

Error syntax_error(const SyntaxProblem& problem, std::string_view text, const std::string& file) {
  std::string what = problem.what;
  if (constexpr std::string_view lead = "Error while "; what.starts_with(lead))
    what = what.substr(lead.size());
  Place place = problem.place;
  std::string_view line = line_at(text, place.line);
  Error error(ErrorCode::toml_syntax, "not valid TOML: " + what);
  if (what.find("cannot redefine") != std::string::npos) {
    // The parser reports the end of the second definition; its key is what a reader looks for.
    place.column = column_of(line, std::min(line.find_first_not_of(" \t"), line.size()));
    error.help("remove one of the two definitions; a key or table may stand only once");
  } else if (what.find("not representable in 64 bits") != std::string::npos) {
    error.help("integers go from -9223372036854775808 to 9223372036854775807");
  } else if (what.find("utf-8") != std::string::npos || what.find("\\u0000") != std::string::npos) {
    error.help("save the file as plain UTF-8 text");
  } else if (what.find("inline table") != std::string::npos) {
    error.help(
        "write an inline table on one line, { a = 1, b = 2 }, or as a section [table] with one key "
        "a line");
  } else if (!mend_value(line, place, error, place)) {
    if (line.find('=') == std::string_view::npos && line.find(':') != std::string_view::npos &&
        printable(line)) {
      std::string_view key = text::trim(line.substr(0, line.find(':')));
      error.help("TOML writes key = value, not key: value" +
                 (key.empty() ? "" : " (" + std::string(key) + " = ...)"));
    } else if (what.find("parsing key") != std::string::npos &&
               line.find('*') != std::string_view::npos) {
      error.help(
          "quote a key that holds other characters than A-Z a-z 0-9 _ -, for example "
          "\"model.layers.*.self_attn.q_proj\" = \"colwise\"");
    } else {
      error.help(
          "strings need quotes, true and false are lower-case, a table starts with [name], one key "
          "= value a line");
    }
  }
  return error.at({Origin::Source::file, file, place.line, place.column});
}

}  // namespace meshwright::config
