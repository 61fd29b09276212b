#include "sdk/text/chat/parser.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "sdk/text/chat/unicode.h"

namespace meshwright::chat {

namespace {

bool lexer_digit(char c) { return c >= '0' && c <= '9'; }
// What Jinja takes for a name before it looks whether it is one: \w, and all that names have.
bool in_name(char32_t code) { return unicode::is_word(code) || unicode::is_name_part(code); }

// Line ends of any kind become "\n"; one at the end is dropped.
std::string normal_lines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normal_lines(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) root();
    add(Lex::end, "");
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(std::string what) const { throw SyntaxProblem{line_, std::move(what)}; }
  void add(Lex kind, std::string_view text) { out_.push_back({kind, line_, std::string(text)}); }
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool here(std::string_view text) const { return rest().starts_with(text); }
  void advance(size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    line_starting_ = to > at_ ? source_[to - 1] == '\n' : line_starting_;
    at_ = to;
  }
  template <class Is>
  size_t past(size_t at, const Is& is) const {
    while (at < source_.size()) {
      auto [code, size] = unicode::decode(source_, at);
      if (!is(code)) break;
      at += size;
    }
    return at;
  }
  size_t past_blanks(size_t at) const { return past(at, unicode::is_blank); }

  // The text before a tag, without the blanks that the tag takes away.
  std::string_view before_tag(size_t end, char sign, bool strips_line) const {
    std::string_view text = std::string_view(source_).substr(at_, end - at_);
    if (sign == '-') return text.substr(0, unicode::stripped(text, false, true).second);
    if (sign == '+' || !strips_line) return text;
    size_t newline = text.rfind('\n');
    size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    if (line == 0 && !line_starting_) return text;
    bool blank = unicode::stripped(text.substr(line), true, false).first == text.size() - line;
    return blank ? text.substr(0, line) : text;
  }

  // Where "{% raw %}" at `begin` ends, or 0.
  size_t raw_end(size_t begin) const {
    size_t at = begin + 2;
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
    at = past_blanks(at);
    if (source_.compare(at, 3, "raw") != 0) return 0;
    at = past_blanks(at + 3);
    if (source_.compare(at, 3, "-%}") == 0) return past_blanks(at + 3);
    return source_.compare(at, 2, "%}") == 0 ? at + 2 : 0;
  }

  // The end of a tag at `at` ("+%}", "-%}" with blanks, "%}" with a newline), or 0.
  size_t tag_end(size_t at, std::string_view close, bool trims) const {
    std::string_view text = std::string_view(source_).substr(at);
    if (trims && text.starts_with('+') && text.substr(1).starts_with(close))
      return at + 1 + close.size();
    if (text.starts_with('-') && text.substr(1).starts_with(close))
      return past_blanks(at + 1 + close.size());
    if (!text.starts_with(close)) return 0;
    at += close.size();
    return trims && at < source_.size() && source_[at] == '\n' ? at + 1 : at;
  }

  void root() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        add(Lex::text, rest());
        return advance(source_.size());
      }
      char next = source_[tag + 1];
      if (next == '{' || next == '%' || next == '#') break;
    }
    char kind = source_[tag + 1];
    char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    if (sign != '-' && sign != '+') sign = '\0';
    std::string_view text = before_tag(tag, sign, kind != '{');
    if (!text.empty()) add(Lex::text, text);
    if (kind == '%') {
      if (size_t body = raw_end(tag); body != 0) {
        advance(body);
        return raw();
      }
    }
    advance(tag + 2 + (sign != '\0' ? 1 : 0));
    if (kind == '#') return comment();
    add(kind == '{' ? Lex::output_begin : Lex::block_begin, "");
    inside(kind == '{');
  }

  void comment() {
    for (size_t at = at_; at < source_.size(); ++at)
      if (size_t end = tag_end(at, "#}", true); end != 0) return advance(end);
    // Jinja minds only if there is something after its beginning.
    if (at_ < source_.size()) fail("Missing end of comment tag");
  }

  void raw() {
    for (size_t at = source_.find("{%", at_); at != std::string::npos;
         at = source_.find("{%", at + 1)) {
      size_t word = at + 2;
      char sign = word < source_.size() ? source_[word] : '\0';
      if (sign == '-' || sign == '+')
        ++word;
      else
        sign = '\0';
      word = past_blanks(word);
      if (source_.compare(word, 6, "endraw") != 0) continue;
      size_t end = tag_end(past_blanks(word + 6), "%}", true);
      if (end == 0) continue;
      std::string_view text = before_tag(at, sign, true);
      if (!text.empty()) add(Lex::text, text);
      return advance(end);
    }
    if (at_ < source_.size()) fail("Missing end of raw directive");
  }

  void inside(bool output) {
    std::string open;  // brackets
    while (at_ < source_.size()) {
      if (open.empty()) {
        size_t end = output ? tag_end(at_, "}}", false) : tag_end(at_, "%}", true);
        if (end != 0) {
          add(output ? Lex::output_end : Lex::block_end, "");
          return advance(end);
        }
      }
      if (size_t next = past_blanks(at_); next != at_) {
        advance(next);
        continue;
      }
      token(open);
    }
    // The parser says what is missing.
  }

  void token(std::string& open) {
    char c = source_[at_];
    if (lexer_digit(c)) return number();
    if (size_t end = past(at_, in_name); end != at_) {
      const std::string_view name = std::string_view(source_).substr(at_, end - at_);
      if (!unicode::is_identifier(name))
        fail("Invalid character in identifier '" + std::string(name) + "'");
      add(Lex::name, name);
      return advance(end);
    }
    if (c == '\'' || c == '"') return string(c);
    static constexpr std::array<std::string_view, 26> kSigns = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    const auto* sign =
        std::find_if(kSigns.begin(), kSigns.end(), [&](std::string_view one) { return here(one); });
    if (sign == kSigns.end())
      fail("unexpected char '" + source_.substr(at_, unicode::decode(source_, at_).size) + "'");
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) fail(std::string("unexpected '") + c + "'");
      if (open.back() != c)
        fail(std::string("unexpected '") + c + "', expected '" + open.back() + "'");
      open.pop_back();
    }
    add(Lex::sign, *sign);
    advance(at_ + sign->size());
  }

  // Digits with single underscores between them, from `at`; the same place if there are none.
  size_t digits(size_t at, std::string_view allowed = "0123456789") const {
    auto digit = [&](size_t i) {
      return i < source_.size() && allowed.find(source_[i]) != std::string_view::npos;
    };
    if (!digit(at)) return at;
    while (digit(at) || (source_.compare(at, 1, "_") == 0 && digit(at + 1))) ++at;
    return at;
  }

  void number() {
    size_t end = digits(at_);
    bool real = false;
    if (source_.compare(end, 1, ".") == 0) {
      if (size_t fraction = digits(end + 1); fraction != end + 1) {
        end = fraction;
        real = true;
      }
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-'))
        ++exponent;
      if (size_t last = digits(exponent); last != exponent) {
        end = last;
        real = true;
      }
    }
    if (!real && source_[at_] == '0' && end == at_ + 1 && end < source_.size()) {
      const char base = static_cast<char>(source_[end] | 0x20);
      const int radix = base == 'x' ? 16 : base == 'o' ? 8 : base == 'b' ? 2 : 0;
      const std::string_view allowed = radix == 16  ? "0123456789abcdefABCDEF"
                                       : radix == 8 ? "01234567"
                                       : radix == 2 ? "01"
                                                    : "";
      size_t from = end + 1 + (source_.compare(end + 1, 1, "_") == 0 ? 1 : 0);
      if (size_t last = digits(from, allowed); !allowed.empty() && last != from) {
        std::string text = source_.substr(from, last - from);
        std::erase(text, '_');
        uint64_t value = 0;
        auto [stop, failed] = std::from_chars(text.data(), text.data() + text.size(), value, radix);
        if (failed != std::errc()) fail("the number is too large");
        add(Lex::integer, std::to_string(value));
        return advance(last);
      }
    }
    std::string text = source_.substr(at_, end - at_);
    // Digits of other scripts may follow those of an integer. Of a real number Jinja takes them for
    // digits that Python does not read.
    for (int digit; end < source_.size() &&
                    (digit = unicode::decimal_of(unicode::decode(source_, end).code)) >= 0;) {
      if (real || text.starts_with('0')) fail("a number with digits of another script");
      text += static_cast<char>('0' + digit);
      end += unicode::decode(source_, end).size;
    }
    std::erase(text, '_');
    if (!real) {
      // Jinja reads "012" as 0 and 12, which no expression allows.
      size_t zeros = text.find_first_not_of('0');
      if (zeros == std::string::npos)
        text = "0";
      else if (zeros > 0)
        fail("a number may not begin with 0");
    }
    add(real ? Lex::real : Lex::integer, text);
    advance(end);
  }

  void string(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail(std::string("unexpected char '") + quote + "'");
    add(Lex::string, unescaped(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    advance(end + 1);
  }

  std::string unescaped(std::string_view text) const {
    std::string out;
    out.reserve(text.size());
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\' || i + 1 >= text.size()) {
        out += text[i];
        continue;
      }
      char c = text[++i];
      static constexpr std::string_view kNames = "abfnrtv\\'\"", kMeans = "\a\b\f\n\r\t\v\\'\"";
      if (size_t simple = kNames.find(c); simple != std::string_view::npos) {
        out += kMeans[simple];
      } else if (c == '\n') {
        // a line that goes on
      } else if (c >= '0' && c <= '7') {
        size_t last = i;
        while (last < text.size() && last < i + 3 && text[last] >= '0' && text[last] <= '7') ++last;
        code(text.substr(i, last - i), 8, out);
        i = last - 1;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        if (text.size() - i - 1 < digits) fail("a truncated escape in a string");
        code(text.substr(i + 1, digits), 16, out);
        i += digits;
      } else if (c == 'N') {
        fail("\\N{...} is not supported in a string");
      } else {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  void code(std::string_view digits, int radix, std::string& out) const {
    uint32_t value = 0;
    auto [end, failed] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, radix);
    if (failed != std::errc() || end != digits.data() + digits.size())
      fail("a truncated escape in a string");
    if (value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
      fail("an escape in a string is not a character");
    unicode::encode(value, out);
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> out_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source) {
  if (!unicode::valid(source)) throw SyntaxProblem{1, "the text is not UTF-8"};
  return Lexer(source).run();
}

}  // namespace meshwright::chat
