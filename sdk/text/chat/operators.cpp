#include <algorithm>
#include <cmath>
#include <span>

#include "sdk/base/plain_text.h"
#include "sdk/text/chat/renderer.h"

namespace meshwright::chat {

using ast::Op;

namespace {

std::string_view sign_of(Op op) {
  switch (op) {
    case Op::add:
      return "+";
    case Op::subtract:
      return "-";
    case Op::multiply:
      return "*";
    case Op::divide:
      return "/";
    case Op::floor_divide:
      return "//";
    case Op::modulo:
      return "%";
    default:
      return "** or pow()";
  }
}

constexpr const char* kTooLarge = "an integer does not fit 64 bits";

}  // namespace

void Renderer::fail_undefined(const Datum& value) const {
  std::string name(value.view());
  if (value.holder == Datum::kUnsafe)
    fail("access to attribute '" + name + "' of '" +
         std::string(type_name(static_cast<Kind>(value.message))) + "' object is unsafe.");
  if (value.holder != 0)
    fail("'" + std::string(type_name(static_cast<Kind>(value.holder))) +
         " object' has no attribute '" + name + "'");
  fail(name.find(' ') == std::string::npos ? "'" + name + "' is undefined"
                                           : name + " is undefined");
}

void Renderer::unsupported(std::string_view op, const Datum& left, const Datum& right) const {
  if (left.is_undefined()) fail_undefined(left);
  if (right.is_undefined()) fail_undefined(right);
  fail("unsupported operand types for " + std::string(op) + ": '" +
       std::string(type_name(left.kind)) + "' and '" + std::string(type_name(right.kind)) + "'");
}

int64_t Renderer::whole_of(const Datum& value, std::string_view what) const {
  if (value.kind == Kind::integer) return value.integer;
  if (value.kind == Kind::boolean) return value.truth ? 1 : 0;
  if (value.is_undefined()) fail_undefined(value);
  fail(std::string(what) + " must be an integer, not '" + std::string(type_name(value.kind)) + "'");
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
      fail("must be a number, not '" + std::string(type_name(value.kind)) + "'");
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
    fail("can only concatenate str (not \"" + std::string(type_name(right.kind)) + "\") to str");
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
      fail("bad operand type for unary -: '" + std::string(type_name(value.kind)) + "'");
  }
}

}  // namespace meshwright::chat
