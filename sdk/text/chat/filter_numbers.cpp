#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "sdk/base/plain_text.h"
#include "sdk/text/chat/renderer.h"
#include "sdk/text/chat/unicode.h"

namespace meshwright::chat {

namespace {

// A text as Python's int() and float() see it: digits of any script as those of ASCII, without the
// blanks around it, which are not all that strip() takes.
std::string digits_of(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    auto [code, size] = unicode::decode(text, at);
    at += size;
    const int digit = code < 0x80 ? -1 : unicode::decimal_of(code);
    if (code < 0x80)
      out += static_cast<char>(code);
    else if (unicode::is_blank(code))
      out += ' ';
    else
      out += digit < 0 ? '?' : static_cast<char>('0' + digit);
  }
  constexpr std::string_view kBlank = " \t\n\v\f\r";
  const size_t begin = std::min(out.find_first_not_of(kBlank), out.size());
  return out.substr(begin, out.find_last_not_of(kBlank) + 1 - begin);
}

// Digits of Python's int(): a sign, single underscores between digits.
std::optional<std::string> int_text(std::string_view text, int base) {
  std::string out;
  if (text.starts_with('-')) out = "-";
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  if (text.size() > 2 && text[0] == '0') {
    char mark = static_cast<char>(text[1] | 0x20);
    if ((base == 16 && mark == 'x') || (base == 8 && mark == 'o') || (base == 2 && mark == 'b'))
      text.remove_prefix(text[2] == '_' ? 3 : 2);
  }
  bool digit_before = false;
  if (text.empty()) return std::nullopt;
  for (char c : text) {
    if (c == '_') {
      if (!digit_before) return std::nullopt;
      digit_before = false;
      continue;
    }
    int value = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'z' ? c - 'a' + 10
                : c >= 'A' && c <= 'Z' ? c - 'A' + 10
                                       : 99;
    if (value >= base) return std::nullopt;
    out += c;
    digit_before = true;
  }
  return digit_before ? std::optional(out) : std::nullopt;
}

// Python's float() of a text.
std::optional<double> float_of(std::string_view text) {
  std::string plain;
  char before = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    auto digit = [](char one) { return one >= '0' && one <= '9'; };
    if (c == '_') {
      if (!digit(before) || i + 1 >= text.size() || !digit(text[i + 1])) return std::nullopt;
    } else {
      plain += static_cast<char>(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
    }
    before = c;
  }
  std::string_view body = plain;
  bool negative = body.starts_with('-');
  if (negative || body.starts_with('+')) body.remove_prefix(1);
  double value = 0;
  if (body == "inf" || body == "infinity") {
    value = HUGE_VAL;
  } else if (body == "nan") {
    value = std::nan("");
  } else {
    if (body.empty() || !((body[0] >= '0' && body[0] <= '9') || body[0] == '.'))
      return std::nullopt;
    auto [stop, failed] = std::from_chars(body.data(), body.data() + body.size(), value);
    if (stop != body.data() + body.size() || failed == std::errc::invalid_argument)
      return std::nullopt;
    if (failed == std::errc::result_out_of_range)
      value = text::read_real(std::string(body).c_str());
  }
  return negative ? -value : value;
}

}  // namespace

Datum Renderer::to_int(const Datum& value, const Arguments& given) {
  Bound bound = bind("int", given, {"default", "base"});
  Datum otherwise = bound[0] == nullptr ? Datum::whole(0) : *bound[0];
  if (value.is_undefined()) fail_undefined(value);
  auto truncated_real = [&](double real) {
    if (!std::isfinite(real)) return otherwise;
    real = std::trunc(real);
    if (std::abs(real) < 9.2e18) return Datum::whole(static_cast<int64_t>(real));
    Datum big = copied(text::format("%.0f", real));
    big.kind = Kind::big;
    return big;
  };
  switch (value.kind) {
    case Kind::integer:
    case Kind::big:
      return value;
    case Kind::boolean:
      return Datum::whole(value.truth ? 1 : 0);
    case Kind::real:
      return truncated_real(value.real);
    case Kind::string:
      break;
    default:
      return otherwise;
  }
  int64_t base = bound[1] == nullptr ? 10 : whole_of(*bound[1], "the base of int");
  if (base < 2 || base > 36) fail("int() base must be >= 2 and <= 36");
  spend(value.size);
  const std::string digits = digits_of(value.view());
  if (auto text = int_text(digits, static_cast<int>(base))) {
    int64_t out = 0;
    auto [end, failed] =
        std::from_chars(text->data(), text->data() + text->size(), out, static_cast<int>(base));
    if (failed == std::errc()) return Datum::whole(out);
    if (base != 10) fail("an integer does not fit 64 bits");
    size_t sign = text->starts_with('-') ? 1 : 0;
    text->erase(sign, text->find_first_not_of('0', sign) - sign);
    Datum big = copied(*text);
    big.kind = Kind::big;
    return big;
  }
  std::optional<double> real = float_of(digits);
  return real ? truncated_real(*real) : otherwise;
}

Datum Renderer::to_float(const Datum& value, const Arguments& given) {
  Bound bound = bind("float", given, {"default"});
  Datum otherwise = bound[0] == nullptr ? Datum::number(0) : *bound[0];
  if (value.is_undefined()) fail_undefined(value);
  if (is_number(value)) return Datum::number(real_of(value));
  if (!value.is_string()) return otherwise;
  spend(value.size);
  std::optional<double> real = float_of(digits_of(value.view()));
  return real ? Datum::number(*real) : otherwise;
}

Datum Renderer::rounded(const Datum& value, const Arguments& given) {
  Bound bound = bind("round", given, {"precision", "method"});
  int64_t precision = bound[0] == nullptr ? 0 : whole_of(*bound[0], "the precision of round");
  std::string how = bound[1] == nullptr ? "common" : plain(*bound[1]);
  if (how != "common" && how != "ceil" && how != "floor")
    fail("method must be common, ceil or floor");
  if (value.is_undefined()) fail_undefined(value);
  if (!is_number(value))
    fail("type " + std::string(type_name(value.kind)) + " doesn't define __round__ method");
  constexpr int64_t kMost = 300;
  if (precision > kMost || precision < -kMost) fail("the precision of round is too large");
  if (how != "common") {
    double scale = std::pow(10.0, static_cast<double>(precision));
    double scaled = real_of(value) * scale;
    return Datum::number((how == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
  }
  if (value.kind != Kind::real) {
    Datum whole = value.kind == Kind::boolean ? Datum::whole(value.truth ? 1 : 0) : value;
    if (precision >= 0) return whole;
    if (whole.kind == Kind::big || precision < -18) fail("an integer cannot be rounded so far");
    // Half goes to the even one, as Python has it.
    int64_t unit = 1;
    for (int64_t i = precision; i < 0; ++i) unit *= 10;
    int64_t rest = whole.integer % unit;
    if (rest < 0) rest += unit;
    int64_t low = 0, out = 0;
    if (__builtin_sub_overflow(whole.integer, rest, &low)) fail("an integer does not fit 64 bits");
    bool up = rest > unit - rest || (rest == unit - rest && (low / unit) % 2 != 0);
    if (__builtin_add_overflow(low, up ? unit : 0, &out)) fail("an integer does not fit 64 bits");
    return Datum::whole(out);
  }
  if (!std::isfinite(value.real)) return value;
  if (precision < 0) {
    double unit = std::pow(10.0, static_cast<double>(-precision));
    return Datum::number(std::nearbyint(value.real / unit) * unit);
  }
  // printf rounds the exact value, half to even, as Python's round() does.
  return Datum::number(
      text::read_real(text::format("%.*f", static_cast<int>(precision), value.real).c_str()));
}

Datum Renderer::extreme(const Datum& value, const Arguments& given, bool largest) {
  Bound bound = bind(largest ? "max" : "min", given, {"case_sensitive", "attribute"});
  Items items = need_items(value);
  if (items.size == 0) return Datum::undefined("the sequence was empty: no such item");
  bool exact = flag(bound[0], false);
  Datum best = items.at[0], best_key = sort_key(best, bound[1], exact);
  for (uint32_t i = 1; i < items.size; ++i) {
    spend(1);
    Datum key = sort_key(items.at[i], bound[1], exact);
    if (largest ? order(key, best_key, ">") != 1 : order(key, best_key, "<") != -1) continue;
    best = items.at[i];
    best_key = key;
  }
  return best;
}

Datum Renderer::summed(const Datum& value, const Arguments& given) {
  Bound bound = bind("sum", given, {"attribute", "start"});
  bool by = bound[0] != nullptr && bound[0]->kind != Kind::none;
  Datum total = bound[1] == nullptr ? Datum::whole(0) : *bound[1];
  if (total.is_string()) fail("sum() can't sum strings");
  for (const Datum& item : need_items(value)) total = add(total, by ? path(item, *bound[0]) : item);
  return total;
}

Datum Renderer::apply_number(Filter filter, std::string_view name, const Datum& value,
                             const Arguments& given) {
  switch (filter) {
    case Filter::int_:
      return to_int(value, given);
    case Filter::float_:
      return to_float(value, given);
    case Filter::round:
      return rounded(value, given);
    case Filter::min:
      return extreme(value, given, false);
    case Filter::max:
      return extreme(value, given, true);
    case Filter::sum:
      return summed(value, given);
    default:
      break;
  }
  bind(name, given, {});
  if (value.is_undefined()) fail_undefined(value);
  if (!is_number(value))
    fail("bad operand type for abs(): '" + std::string(type_name(value.kind)) + "'");
  if (value.kind == Kind::real) return Datum::number(std::abs(value.real));
  if (value.kind == Kind::boolean) return Datum::whole(value.truth ? 1 : 0);
  return number_order(value, Datum::whole(0)) < 0 ? negative(value) : value;
}

}  // namespace meshwright::chat
