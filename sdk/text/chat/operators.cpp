// Numbers: what operators and filters make of them, and of what adds and multiplies as they do.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>

#include "sdk/base/plain_text.h"
#include "sdk/text/chat/renderer.h"
#include "sdk/text/chat/unicode.h"

namespace meshwright::chat {

using ast::Op;

namespace {

std::string_view sign_of(Op op) {
  constexpr std::string_view kSigns[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};
  return kSigns[static_cast<size_t>(op) - static_cast<size_t>(Op::add)];
}

constexpr const char* kTooLarge = "an integer does not fit 64 bits";

}  // namespace

void Renderer::fail_undefined(const Datum& value) const {
  std::string name(value.view());
  if (value.holder == Datum::kUnsafe)
    fail("access to attribute '" + name + "' of '" + type_name(static_cast<Kind>(value.message)) +
         "' object is unsafe.");
  if (value.holder != 0)
    fail("'" + type_name(static_cast<Kind>(value.holder)) + " object' has no attribute '" + name +
         "'");
  fail(name.find(' ') == std::string::npos ? "'" + name + "' is undefined"
                                           : name + " is undefined");
}

void Renderer::unsupported(std::string_view op, const Datum& left, const Datum& right) const {
  if (left.is_undefined()) fail_undefined(left);
  if (right.is_undefined()) fail_undefined(right);
  fail("unsupported operand types for " + std::string(op) + ": '" + type_name(left.kind) +
       "' and '" + type_name(right.kind) + "'");
}

int64_t Renderer::whole_of(const Datum& value, std::string_view what) const {
  if (value.kind == Kind::integer) return value.integer;
  if (value.kind == Kind::boolean) return value.truth ? 1 : 0;
  if (value.is_undefined()) fail_undefined(value);
  fail(std::string(what) + " must be an integer, not '" + type_name(value.kind) + "'");
}

double Renderer::real_of(const Datum& value) const {
  switch (value.kind) {
    case Kind::boolean:
      return value.truth ? 1 : 0;
    case Kind::integer:
      return static_cast<double>(value.integer);
    case Kind::real:
      return value.real;
    case Kind::big:
      return text::read_real(std::string(value.view()).c_str());
    default:
      fail("must be a number, not '" + type_name(value.kind) + "'");
  }
}

Datum Renderer::add(const Datum& left, const Datum& right) {
  if (left.is_string() && right.is_string()) {
    // A Markup escapes what it is joined with, on either side.
    if (left.marked != right.marked)
      return left.marked ? marked(appended(left, escape(right)))
                         : marked(appended(escape(left), right));
    return marked(appended(left, right), left.marked);
  }
  if (left.is_listed() && right.kind == left.kind) {
    size_t size = size_t{left.size} + right.size;
    spend(right.size);
    Datum* items = left.kind == Kind::list ? grown(left.items, left.size, right.size) : nullptr;
    if (items != nullptr) {
      for (uint32_t i = 0; i < right.size; ++i) items[left.size + i] = keep(right.items[i]);
      return Datum::sequence(left.kind, items, size);
    }
    items = take<Datum>(size);
    std::copy_n(left.items, left.size, items);
    std::copy_n(right.items, right.size, items + left.size);
    spend(left.size);
    return Datum::sequence(left.kind, items, size);
  }
  if (left.is_string() && !right.is_undefined())
    fail("can only concatenate str (not \"" + type_name(right.kind) + "\") to str");
  return arithmetic(Op::add, left, right);
}

Datum Renderer::appended(const Datum& left, const Datum& right) {
  size_t size = size_t{left.size} + right.size;
  check_size(size);
  if (left.size == 0) return right;
  if (right.size == 0) return left;
  spend(right.size);
  char* bytes = grown(left.view().data(), left.size, right.size);
  if (bytes == nullptr) {
    spend(left.size);
    bytes = take<char>(size);
    std::copy_n(left.view().data(), left.size, bytes);
  }
  std::copy_n(right.view().data(), right.size, bytes + left.size);
  if (!left.mixed && !right.mixed && left.message == right.message)
    return Datum::string({bytes, size}, left.message);
  // The runs of both. Those of the left are shared with others, so that none of them is prolonged.
  auto runs_of = [](const Datum& string, Run& one) {
    if (string.mixed) return std::span(string.parts->runs, string.parts->count);
    one = {0, string.size, string.message, 0};
    return std::span<const Run>(&one, string.message == kNoMessage ? 0 : 1);
  };
  Run one_left{}, one_right{};
  const std::span<const Run> first = runs_of(left, one_left), second = runs_of(right, one_right);
  const size_t count = first.size() + second.size();
  spend(second.size());
  Run* runs = left.mixed ? grown(first.data(), first.size(), second.size()) : nullptr;
  if (runs == nullptr) {
    spend(first.size());
    runs = take<Run>(count);
    std::copy(first.begin(), first.end(), runs);
  }
  for (size_t i = 0; i < second.size(); ++i) {
    Run& run = runs[first.size() + i];
    run = second[i];
    run.begin += left.size;
    run.end += left.size;
  }
  Datum out = Datum::string({bytes, size});
  out.parts = make(Mixed{bytes, runs, static_cast<uint32_t>(count)});
  out.mixed = true;
  return out;
}

Datum Renderer::repeated(const Datum& value, int64_t times) {
  if (times <= 0 || value.size == 0) {
    Datum out = value;
    if (value.is_string()) return marked(Datum::string(""), value.marked);
    out.size = 0;
    return out;
  }
  auto count = static_cast<size_t>(times);
  if (value.is_string()) {
    check_size(count > limits_.output / value.size ? SIZE_MAX : count * value.size);
    Writer out;
    for (size_t i = 0; i < count; ++i) out.write(value, 0);
    spend(out.text.size());
    return marked(text_of(out), value.marked);
  }
  if (count > limits_.memory / sizeof(Datum) / value.size)
    fail("the template takes too much memory");
  Datum* items = take<Datum>(count * value.size);
  for (size_t i = 0; i < count; ++i) std::copy_n(value.items, value.size, items + i * value.size);
  spend(count * value.size);
  return Datum::sequence(value.kind, items, count * value.size);
}

Datum Renderer::arithmetic(Op op, const Datum& left, const Datum& right) {
  if (op == Op::modulo && left.is_string()) {
    Arguments given;
    given.list = right.kind == Kind::tuple ? right.items : &right;
    given.count = right.kind == Kind::tuple ? right.size : 1;
    return percent(left, given);
  }
  auto whole = [](const Datum& value) {
    return value.kind == Kind::integer || value.kind == Kind::boolean;
  };
  if (op == Op::multiply) {
    if ((left.is_string() || left.is_listed()) && whole(right))
      return repeated(left, whole_of(right, ""));
    if ((right.is_string() || right.is_listed()) && whole(left))
      return repeated(right, whole_of(left, ""));
  }
  if (!is_number(left) || !is_number(right)) unsupported(sign_of(op), left, right);
  if (whole(left) && whole(right))
    return whole_arithmetic(op, whole_of(left, ""), whole_of(right, ""));
  if (left.kind != Kind::real && right.kind != Kind::real && op != Op::divide) fail(kTooLarge);
  return real_arithmetic(op, real_of(left), real_of(right));
}

Datum Renderer::whole_arithmetic(Op op, int64_t left, int64_t right) {
  int64_t out = 0;
  switch (op) {
    case Op::add:
      if (__builtin_add_overflow(left, right, &out)) fail(kTooLarge);
      return Datum::whole(out);
    case Op::subtract:
      if (__builtin_sub_overflow(left, right, &out)) fail(kTooLarge);
      return Datum::whole(out);
    case Op::multiply:
      if (__builtin_mul_overflow(left, right, &out)) fail(kTooLarge);
      return Datum::whole(out);
    case Op::divide:
      return real_arithmetic(op, static_cast<double>(left), static_cast<double>(right));
    case Op::floor_divide:
    case Op::modulo: {
      if (right == 0) fail("integer division or modulo by zero");
      if (right == -1) {
        if (op == Op::modulo) return Datum::whole(0);
        if (__builtin_sub_overflow(int64_t{0}, left, &out)) fail(kTooLarge);
        return Datum::whole(out);
      }
      int64_t quotient = left / right, rest = left % right;
      if (rest != 0 && (rest < 0) != (right < 0)) {
        --quotient;
        rest += right;
      }
      return Datum::whole(op == Op::modulo ? rest : quotient);
    }
    default:
      break;
  }
  if (right < 0) {
    if (left == 0) fail("0.0 cannot be raised to a negative power");
    return Datum::number(std::pow(static_cast<double>(left), static_cast<double>(right)));
  }
  int64_t power = 1, base = left;
  for (int64_t rest = right; rest > 0; rest >>= 1) {
    if ((rest & 1) != 0 && __builtin_mul_overflow(power, base, &power)) fail(kTooLarge);
    if (rest > 1 && __builtin_mul_overflow(base, base, &base)) fail(kTooLarge);
  }
  return Datum::whole(power);
}

Datum Renderer::real_arithmetic(Op op, double left, double right) {
  switch (op) {
    case Op::add:
      return Datum::number(left + right);
    case Op::subtract:
      return Datum::number(left - right);
    case Op::multiply:
      return Datum::number(left * right);
    case Op::divide:
      if (right == 0) fail("division by zero");
      return Datum::number(left / right);
    case Op::floor_divide:
    case Op::modulo: {
      if (right == 0) fail("division or modulo by zero");
      // As Python's float_divmod.
      double rest = std::fmod(left, right), quotient = (left - rest) / right;
      if (rest != 0) {
        if ((right < 0) != (rest < 0)) {
          rest += right;
          quotient -= 1;
        }
      } else {
        rest = std::copysign(0.0, right);
      }
      if (op == Op::modulo) return Datum::number(rest);
      if (quotient == 0) return Datum::number(std::copysign(0.0, left / right));
      double floor = std::floor(quotient);
      return Datum::number(quotient - floor > 0.5 ? floor + 1 : floor);
    }
    default: {
      if (left == 0 && right < 0) fail("0.0 cannot be raised to a negative power");
      double power = std::pow(left, right);
      if (std::isnan(power) && !std::isnan(left) && !std::isnan(right))
        fail("a negative number cannot be raised to a fraction");
      if (std::isinf(power) && !std::isinf(left) && !std::isinf(right))
        fail("the result is too large");
      return Datum::number(power);
    }
  }
}

Datum Renderer::negative(const Datum& value) {
  switch (value.kind) {
    case Kind::boolean:
      return Datum::whole(value.truth ? -1 : 0);
    case Kind::integer:
      if (value.integer == INT64_MIN) fail(kTooLarge);
      return Datum::whole(-value.integer);
    case Kind::real:
      return Datum::number(-value.real);
    case Kind::big: {
      std::string_view digits = value.view();
      Datum out =
          digits.starts_with('-') ? copied(digits.substr(1)) : copied("-" + std::string(digits));
      // -9223372036854775808 is the one that fits with its sign.
      if (out.view() == "-9223372036854775808") return Datum::whole(INT64_MIN);
      out.kind = Kind::big;
      return out;
    }
    case Kind::undefined:
      fail_undefined(value);
    default:
      fail("bad operand type for unary -: '" + type_name(value.kind) + "'");
  }
}

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
  if (!is_number(value)) fail("type " + type_name(value.kind) + " doesn't define __round__ method");
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
  bool by = is_given(bound[0]);
  Datum total = bound[1] == nullptr ? Datum::whole(0) : *bound[1];
  if (total.is_string()) fail("sum() can't sum strings");
  for (const Datum& item : need_items(value)) total = add(total, by ? path(item, *bound[0]) : item);
  return total;
}

Datum Renderer::absolute(const Datum& value) {
  if (value.is_undefined()) fail_undefined(value);
  if (!is_number(value)) fail("bad operand type for abs(): '" + type_name(value.kind) + "'");
  if (value.kind == Kind::real) return Datum::number(std::abs(value.real));
  if (value.kind == Kind::boolean) return Datum::whole(value.truth ? 1 : 0);
  return number_order(value, Datum::whole(0)) < 0 ? negative(value) : value;
}

}  // namespace meshwright::chat
