#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <optional>

#include "sdk/base/files/utf8.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::report {
namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string value = text::lower(variable(name));
    if (value.empty()) continue;
    return value.find("utf-8") != std::string::npos || value.find("utf8") != std::string::npos;
  }
  // Nothing is set in most containers, and their terminals read UTF-8.
  return true;
}

int width_of(std::FILE* stream) {
  constexpr int kNarrowest = 40, kWidest = 400;
  if (int columns = std::atoi(std::string(variable("COLUMNS")).c_str()); columns > 0)
    return std::clamp(columns, kNarrowest, kWidest);
  winsize size{};
  if (isatty(fileno(stream)) == 1 && ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 &&
      size.ws_col > 0)
    return std::clamp<int>(size.ws_col, kNarrowest, kWidest);
  return 80;
}

const char* sequence(Tone tone) {
  // In the order of Tone.
  static constexpr const char* kSequences[] = {"",         "\x1b[1m",  "\x1b[2m",
                                               "\x1b[31m", "\x1b[32m", "\x1b[33m",
                                               "\x1b[34m", "\x1b[35m", "\x1b[36m"};
  static_assert(std::size(kSequences) == static_cast<size_t>(Tone::cyan) + 1);
  return kSequences[static_cast<size_t>(tone)];
}

struct CodePoint {
  char32_t value;
  size_t length;  // bytes
};

// nullopt: not valid UTF-8 here.
std::optional<CodePoint> decode(std::string_view text) {
  const auto [code, length] = base::character_at(text, 0);
  if (base::first_invalid(text.substr(0, length)) < length) return std::nullopt;
  return CodePoint{static_cast<char32_t>(code), length};
}

// The coarse classes of East Asian Width and combining marks; enough to keep names aligned.
size_t columns_of(char32_t c) {
  if ((c >= 0x300 && c <= 0x36f) || (c >= 0x200b && c <= 0x200f) || (c >= 0xfe00 && c <= 0xfe0f) ||
      (c >= 0x20d0 && c <= 0x20ff))
    return 0;
  bool wide = (c >= 0x1100 && c <= 0x115f) || (c >= 0x2e80 && c <= 0xa4cf) ||
              (c >= 0xac00 && c <= 0xd7a3) || (c >= 0xf900 && c <= 0xfaff) ||
              (c >= 0xfe30 && c <= 0xfe6f) || (c >= 0xff00 && c <= 0xff60) ||
              (c >= 0xffe0 && c <= 0xffe6) || (c >= 0x1f300 && c <= 0x1faff) ||
              (c >= 0x20000 && c <= 0x3fffd);
  return wide ? 2 : 1;
}

// Bytes of the colour sequence at the front of `text`, or 0.
size_t escape_length(std::string_view text) {
  if (text.size() < 2 || text[0] != '\x1b' || text[1] != '[') return 0;
  size_t end = text.find('m');
  return end == std::string_view::npos ? 0 : end + 1;
}

// The next unit that must not be torn: a colour sequence or a code point; and its columns.
std::pair<size_t, size_t> next_piece(std::string_view text) {
  if (size_t length = escape_length(text)) return {length, 0};
  std::optional<CodePoint> point = decode(text);
  return point ? std::pair(point->length, columns_of(point->value))
               : std::pair<size_t, size_t>(1, 1);
}

// Bytes of the longest front of `text` that fits `width` columns, at least one piece.
size_t fitting_length(std::string_view text, size_t width) {
  size_t length = 0, columns = 0;
  while (length < text.size()) {
    auto [bytes, taken] = next_piece(text.substr(length));
    if (columns + taken > width && length > 0) break;
    length += bytes;
    columns += taken;
  }
  return length;
}

}  // namespace

Style style_of(std::FILE* stream) {
  Style style;
  style.colour =
      isatty(fileno(stream)) == 1 && variable("NO_COLOR").empty() && variable("TERM") != "dumb";
  style.unicode = locale_is_utf8();
  style.width = width_of(stream);
  return style;
}

std::string paint(const Style& style, Tone tone, std::string_view text) {
  if (!style.colour || tone == Tone::plain || text.empty()) return std::string(text);
  return sequence(tone) + std::string(text) + "\x1b[0m";
}

size_t display_width(std::string_view text) {
  size_t columns = 0;
  while (!text.empty()) {
    auto [bytes, taken] = next_piece(text);
    columns += taken;
    text.remove_prefix(bytes);
  }
  return columns;
}

std::string pad(std::string_view text, size_t width) {
  size_t taken = display_width(text);
  return std::string(text) + std::string(taken < width ? width - taken : 0, ' ');
}

std::string pad_left(std::string_view text, size_t width) {
  size_t taken = display_width(text);
  return std::string(taken < width ? width - taken : 0, ' ') + std::string(text);
}

namespace {

bool is_control(char32_t c) { return c < 0x20 || (c >= 0x7f && c < 0xa0); }

// Lines and words in another order than they stand in, or out of sight.
bool is_directional(char32_t c) {
  return c == 0x61c || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) ||
         (c >= 0x2066 && c <= 0x2069);
}

// What one piece of foreign text is shown as.
void add_shown(std::string_view piece, std::optional<CodePoint> point, std::string& out) {
  if (!point) {
    out += "\xef\xbf\xbd";  // U+FFFD
  } else if (point->value == '\n' || !(is_control(point->value) || is_directional(point->value))) {
    out += piece;
  } else {
    out += text::format(point->value < 0x100 ? "\\x%02x" : "\\u%04x",
                        static_cast<unsigned>(point->value));
  }
}

// Bytes of one of paint()'s own sequences at the front of `text`, or 0.
size_t painted_length(std::string_view text) {
  if (escape_length(text) == 0) return 0;
  std::string_view found = text.substr(0, escape_length(text));
  if (found == "\x1b[0m") return found.size();
  for (auto tone = Tone::bold; tone <= Tone::cyan;
       tone = static_cast<Tone>(static_cast<uint8_t>(tone) + 1))
    if (found == sequence(tone)) return found.size();
  return 0;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::optional<CodePoint> point = decode(text);
    const size_t length = point ? point->length : 1;
    if (text[0] == '\t')
      out += ' ';
    else
      add_shown(text.substr(0, length), point, out);
    text.remove_prefix(length);
  }
  return out;
}

std::string screened(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    size_t length = painted_length(text);
    if (length > 0 || text[0] == '\t') {
      length = std::max<size_t>(length, 1);
      out += text.substr(0, length);
    } else {
      const std::optional<CodePoint> point = decode(text);
      length = point ? point->length : 1;
      add_shown(text.substr(0, length), point, out);
    }
    text.remove_prefix(length);
  }
  return out;
}

std::string csv_cell(std::string_view text) {
  std::string cell = printable(text);
  // Spreadsheets compute what begins so.
  if (!cell.empty() && std::string_view("=+-@\t\r").find(text[0]) != std::string_view::npos)
    cell.insert(0, 1, '\'');
  return cell;
}

// Where a word that is too long is cut: after the last dot or slash, else underscore or hyphen,
// that leaves something to read before it.
static size_t cut_of_word(std::string_view word, size_t fits) {
  for (std::string_view after : {"./", "_-"})
    if (size_t at = word.substr(0, fits).find_last_of(after);
        at != std::string_view::npos && at >= fits / 4)
      return at + 1;
  return fits;
}

std::vector<std::string> wrap(std::string_view text, size_t width) {
  std::vector<std::string> lines;
  width = std::max<size_t>(width, 1);
  for (bool more = true; more;) {
    size_t newline = text.find('\n');
    std::string_view rest = text.substr(0, newline);
    more = newline != std::string_view::npos;
    if (more) text.remove_prefix(newline + 1);
    while (display_width(rest) > width) {
      size_t fits = fitting_length(rest, width);
      size_t space = rest.rfind(' ', fits);
      bool in_a_word = space == std::string_view::npos || rest.find_first_not_of(' ') > space;
      size_t cut = in_a_word ? cut_of_word(rest, fits) : space;
      lines.emplace_back(rest.substr(0, cut));
      rest.remove_prefix(cut);
      rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    }
    lines.emplace_back(rest);
  }
  return lines;
}

}  // namespace meshwright::report
