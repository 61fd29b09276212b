// Where Oniguruma and PCRE2 differ, the pattern is written anew; what cannot be written is refused
// rather than matched otherwise.
#include <cctype>
#include <utility>

#include "sdk/base/plain_text.h"
#include "sdk/text/tokenizer/pattern.h"

namespace meshwright::tokenizer {

namespace {

// PCRE2's own \w is letters, numbers and the underscore; its \s has one character more (U+180E).
// Outside of a class Oniguruma's has six numbers of Latin-1 more, and so have its edges of words.
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})",
                           kBareWord =
                               R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})",
                           kSpace = R"(\p{White_Space})", kHex = "0-9a-fA-F";

class Writer {
 public:
  explicit Writer(std::string_view in) : in_(in) {}

  std::string write() {
    while (at_ < in_.size()) {
      switch (in_[at_]) {
        case '\\':
          escape(false);
          break;
        case '[':
          set();
          break;
        case '(':
          open();
          break;
        case '{':
          repeat();
          break;
        default:
          out_.push_back(in_[at_++]);
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const { throw PatternProblem{at_, what}; }
  bool next_is(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  void take(std::string_view text) {
    out_ += text;
    at_ += text.size();
  }
  void put(std::string_view text, size_t taken) {
    out_ += text;
    at_ += taken;
  }

  void escape(bool in_set) {
    if (at_ + 1 >= in_.size()) refuse("ends in a backslash");
    char c = in_[at_ + 1];
    auto not_in_set = [&] {
      if (in_set) refuse(std::string("uses \\") + c + " inside a class, which is not read here");
    };
    auto as_set = [&](std::string_view members) {
      put(in_set ? std::string(members) : "[" + std::string(members) + "]", 2);
    };
    static constexpr std::pair<char, std::string_view> kSame[] = {{'s', kSpace},
                                                                  {'S', R"(\P{White_Space})"},
                                                                  {'d', R"(\p{Nd})"},
                                                                  {'D', R"(\P{Nd})"},
                                                                  {'v', R"(\x0b)"}};
    for (const auto& [letter, written] : kSame)
      if (c == letter) return put(written, 2);
    auto one_of = [&](std::string_view letters) {
      return letters.find(c) != std::string_view::npos;
    };
    if (in_set ? c == 'b' : one_of("AzZRXKkg")) return take(in_.substr(at_, 2));  // \b: backspace
    if (one_of("tnrfae")) return take(in_.substr(at_, 2));
    if (one_of("pP")) return property(c);
    if (one_of("xu")) return by_number(c);
    if (one_of("WHBAzZRXKkg")) not_in_set();
    switch (c) {
      case 'w':
        return as_set(in_set ? kWord : kBareWord);
      case 'h':
        return as_set(kHex);
      case 'W':
        return put("[^" + std::string(kBareWord) + "]", 2);
      case 'H':
        return put("[^" + std::string(kHex) + "]", 2);
      case 'b':
        return put(edge(), 2);
      case 'B':
        return put("(?!" + edge() + ")", 2);
      default:
        break;
    }
    if (text::is_letter(c) || c == '0' || (in_set && std::isdigit(static_cast<unsigned char>(c))))
      refuse(std::string("uses \\") + c + ", which is not read here");
    if (static_cast<unsigned char>(c) >= 0x80)
      ++at_;  // of a character of several bytes, which needs no backslash
    else
      take(in_.substr(at_, 2));
  }

  static std::string edge() {
    std::string word = "[" + std::string(kBareWord) + "]";
    return "(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))";
  }

  // \p{...}: PCRE2 would take a script's name for its script extensions.
  void property(char c) {
    if (!in_.substr(at_ + 2).starts_with('{'))
      refuse(std::string("uses \\") + c + " without braces");
    size_t close = in_.find('}', at_);
    if (close == std::string_view::npos) refuse("has a { that nothing closes");
    std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    std::string plain;
    for (char letter : name) {
      if (letter == ' ' || letter == '_' || letter == '-') continue;
      if (!text::is_alphanumeric(letter))
        refuse("has \\p{" + std::string(name) + "}, which names no property");
      plain.push_back(text::lower(letter));
    }
    static constexpr std::string_view kProperties =
        " any alphabetic whitespace lowercase uppercase ideographic emoji emojimodifier "
        "emojimodifierbase emojicomponent hexdigit asciihexdigit math joincontrol "
        "extendedpictographic emojipresentation xidstart xidcontinue idstart idcontinue diacritic "
        "extender quotationmark dash ";
    const bool known =
        plain.size() <= 2 || kProperties.find(" " + plain + " ") != std::string::npos;
    out_ += '\\';
    out_ += c;
    out_ += negated ? "{^" : "{";
    out_ += (known ? "" : "sc:") + std::string(name) + "}";
    at_ = close + 1;
  }

  // \xHH, \x{H...}, \uHHHH
  void by_number(char c) {
    size_t from = at_ + 2, to = from;
    bool braces = c == 'x' && from < in_.size() && in_[from] == '{';
    if (braces) to = ++from;
    size_t most = braces ? 6 : c == 'x' ? 2 : 4;
    while (to < in_.size() && to - from < most &&
           std::isxdigit(static_cast<unsigned char>(in_[to])))
      ++to;
    bool whole = to > from && (c != 'u' || to - from == 4) &&
                 (!braces || (to < in_.size() && in_[to] == '}'));
    if (!whole) refuse(std::string("has a \\") + c + " without a number");
    std::string digits(in_.substr(from, to - from));
    // Oniguruma takes \xHH for a byte of the text, which from 80 on is only a part of a character.
    if (!braces && c == 'x' && std::stoi(digits, nullptr, 16) >= 0x80)
      refuse("uses \\x" + digits + ", a byte that is no character");
    out_ += "\\x{" + digits + "}";
    at_ = to + (braces ? 1 : 0);
  }

  void set() {
    take("[");
    if (next_is("^")) take("^");
    members(false);
    take("]");
  }

  // What a class holds, up to its end. nested: it stands in another one, which has its members,
  // too.
  void members(bool nested) {
    if (next_is("]")) refuse("has an empty class, or a ] in it that no backslash precedes");
    for (bool first = true; at_ < in_.size() && in_[at_] != ']'; first = false) {
      if (in_[at_] == '\\') {
        escape(true);
      } else if (next_is("[:")) {
        refuse("uses a POSIX class such as [:alpha:], which is not read here; \\p{...} is");
      } else if (in_[at_] == '[') {
        inner_set();
      } else if (next_is("&&")) {
        refuse("intersects classes with &&, which is not read here");
      } else if (nested && in_[at_] == '-' && (first || in_.substr(at_ + 1).starts_with(']'))) {
        put("\\-", 1);  // between what stands beside it in the outer class it would be a range
      } else {
        out_.push_back(in_[at_++]);
      }
    }
    if (at_ >= in_.size()) refuse("has a [ that nothing closes");
  }

  void inner_set() {
    if (next_is("[^")) refuse("has a negated class inside a class, which is not read here");
    if (out_.ends_with('-')) refuse("has a - before a class inside a class");
    ++at_;
    members(true);
    ++at_;
    if (next_is("-")) refuse("has a - behind a class inside a class");
  }

  void open() {
    if (next_is("(*")) refuse("uses (*...), which is not read here");
    if (!next_is("(?")) return take("(");
    for (std::string_view kind : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"})
      if (next_is(kind)) return take(kind);
    if (next_is("(?<")) return take("(?<");
    // Options: in Ruby m is what others call s, and an option without a group reaches over the bars
    // that follow.
    size_t end = in_.find_first_not_of("im-", at_ + 2);
    bool group = end != std::string_view::npos && in_[end] == ':',
         rest = end != std::string_view::npos && in_[end] == ')' && at_ == 0;
    if (!group && !rest) refuse("uses a kind of group that is not read here");
    for (; at_ <= end; ++at_) out_.push_back(in_[at_] == 'm' ? 's' : in_[at_]);
  }

  void repeat() {
    size_t at = at_ + 1, comma = std::string_view::npos;
    while (at < in_.size() && (std::isdigit(static_cast<unsigned char>(in_[at])) ||
                               (in_[at] == ',' && comma == std::string_view::npos))) {
      if (in_[at] == ',') comma = at;
      ++at;
    }
    if (at >= in_.size() || in_[at] != '}' || at == at_ + 1 ||
        (comma == at_ + 1 && at == comma + 1))
      refuse("has a { that is no repetition; write \\{");
    std::string_view after = in_.substr(at + 1);
    if (after.starts_with('+') || (comma == std::string_view::npos && after.starts_with('?')))
      refuse("has a repetition in braces followed by + or ?, which is not read here");
    out_ += comma == at_ + 1 ? "{0" : "{";
    ++at_;
    take(in_.substr(at_, at + 1 - at_));
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string to_pcre2(std::string_view pattern) { return Writer(pattern).write(); }

}  // namespace meshwright::tokenizer
