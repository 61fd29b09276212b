#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "sdk/text/chat/renderer.h"
#include "sdk/text/chat/unicode.h"

namespace meshwright::chat {

std::string Renderer::type_name(Kind kind) {
  constexpr const char* kNames[] = {"Undefined",   "Undefined", "NoneType",  "bool", "int",
                                    "int",         "float",     "str",       "list", "tuple",
                                    "range",       "generator", "dict_view", "dict", "Namespace",
                                    "LoopContext", "function"};
  static_assert(std::size(kNames) == static_cast<size_t>(Kind::callable) + 1);
  return kNames[static_cast<size_t>(kind)];
}

bool Renderer::truth(const Datum& value) const {
  switch (value.kind) {
    case Kind::missing:
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
      return value.truth;
    case Kind::integer:
      return value.integer != 0;
    case Kind::real:
      return value.real != 0;
    case Kind::string:
    case Kind::list:
    case Kind::tuple:
    case Kind::range:
    case Kind::view:
    case Kind::dict:
      return value.size != 0;
    default:
      return true;
  }
}

int Renderer::number_order(const Datum& left, const Datum& right) {
  auto sign = [](auto a, auto b) { return a < b ? -1 : a > b ? 1 : 0; };
  if (left.kind == Kind::real || right.kind == Kind::real) {
    double a = real_of(left), b = real_of(right);
    if (std::isnan(a) || std::isnan(b)) return 2;
    if (left.kind == Kind::real && right.kind == Kind::real) return sign(a, b);
    // Python compares exactly: a long double holds all of 64 bits.
    if (left.kind == Kind::integer)
      return sign(static_cast<long double>(left.integer), static_cast<long double>(b));
    if (right.kind == Kind::integer)
      return sign(static_cast<long double>(a), static_cast<long double>(right.integer));
    return sign(a, b);
  }
  if (left.kind != Kind::big && right.kind != Kind::big)
    return sign(whole_of(left, ""), whole_of(right, ""));
  // One beyond 64 bits decides by its sign, two by sign, length and digits.
  auto is_negative = [](const Datum& big) { return big.view().starts_with('-'); };
  if (left.kind != Kind::big) return is_negative(right) ? 1 : -1;
  if (right.kind != Kind::big) return is_negative(left) ? -1 : 1;
  if (is_negative(left) != is_negative(right)) return is_negative(left) ? -1 : 1;
  std::string_view a = left.view(), b = right.view();
  spend(a.size());
  int magnitude = a.size() != b.size() ? sign(a.size(), b.size()) : sign(a.compare(b), 0);
  return is_negative(left) ? -magnitude : magnitude;
}

bool Renderer::identical(const Datum& left, const Datum& right) const {
  if (left.kind != right.kind) return false;
  switch (left.kind) {
    case Kind::missing:
    case Kind::undefined:
    case Kind::none:
      return true;
    case Kind::boolean:
      return left.truth == right.truth;
    case Kind::integer:
      return left.integer == right.integer;
    case Kind::real:
      return left.real == right.real;
    case Kind::big:
    case Kind::string:
      return left.view() == right.view();
    case Kind::space:
      return left.space == right.space;
    case Kind::loop:
      return left.loop == right.loop;
    case Kind::callable:
      return left.callable == right.callable;
    default:
      return left.items == right.items && left.size == right.size;
  }
}

bool Renderer::equal(const Datum& left, const Datum& right, int depth) {
  if (is_number(left) && is_number(right)) return number_order(left, right) == 0;
  if (left.kind != right.kind) return false;
  switch (left.kind) {
    case Kind::string:
      if (left.size != right.size) return false;
      spend(left.size / 8);
      return left.view() == right.view();
    case Kind::list:
    case Kind::tuple:
    case Kind::range:
    case Kind::dict:
      break;
    case Kind::view:
      // Keys and items are sets; their order is not compared.
      if (left.holder == static_cast<uint8_t>(View::values) || left.holder != right.holder ||
          left.size != right.size)
        return identical(left, right);
      return std::all_of(left.items, left.items + left.size,
                         [&](const Datum& one) { return contains(right, one); });
    case Kind::iterator:
    default:
      return identical(left, right);
  }
  if (left.size != right.size) return false;
  if (left.items == right.items) return true;
  if (depth > kDeepestValue) fail("a value is nested too deeply");
  spend(left.size);
  if (left.kind == Kind::dict) {
    for (uint32_t i = 0; i < left.size; ++i) {
      const Datum* other = find(right, left.items[2 * size_t{i}]);
      if (other == nullptr || !equal(left.items[2 * size_t{i} + 1], *other, depth + 1))
        return false;
    }
    return true;
  }
  for (uint32_t i = 0; i < left.size; ++i)
    if (!equal(left.items[i], right.items[i], depth + 1)) return false;
  return true;
}

int Renderer::order(const Datum& left, const Datum& right, std::string_view op, int depth) {
  if (is_number(left) && is_number(right)) return number_order(left, right);
  if (left.is_string() && right.is_string()) {
    // The order of UTF-8 is that of the characters.
    spend(std::min(left.size, right.size) / 8);
    int found = left.view().compare(right.view());
    return found < 0 ? -1 : found > 0 ? 1 : 0;
  }
  if (left.is_listed() && left.kind == right.kind) {
    if (depth > kDeepestValue) fail("a value is nested too deeply");
    uint32_t both = std::min(left.size, right.size);
    for (uint32_t i = 0; i < both; ++i) {
      spend(1);
      if (!equal(left.items[i], right.items[i], depth + 1))
        return order(left.items[i], right.items[i], op, depth + 1);
    }
    return left.size < right.size ? -1 : left.size > right.size ? 1 : 0;
  }
  if (left.is_undefined()) fail_undefined(left);
  if (right.is_undefined()) fail_undefined(right);
  fail("'" + std::string(op) + "' not supported between instances of '" + type_name(left.kind) +
       "' and '" + type_name(right.kind) + "'");
}

bool Renderer::related(ast::Relation relation, const Datum& left, const Datum& right) {
  using ast::Relation;
  switch (relation) {
    case Relation::eq:
      return equal(left, right);
    case Relation::ne:
      return !equal(left, right);
    case Relation::lt:
      return order(left, right, "<") == -1;
    case Relation::le:
      return order(left, right, "<=") <= 0;
    case Relation::gt:
      return order(left, right, ">") == 1;
    case Relation::ge: {
      const int found = order(left, right, ">=");
      return found == 0 || found == 1;
    }
    case Relation::in:
      return contains(right, left);
    case Relation::not_in:
      return !contains(right, left);
  }
  return false;
}

bool Renderer::contains(const Datum& container, const Datum& value) {
  if (container.is_string()) {
    if (value.is_undefined()) fail_undefined(value);
    if (!value.is_string())
      fail("'in <string>' requires string as left operand, not " + type_name(value.kind));
    spend(container.size);
    return container.view().find(value.view()) != std::string_view::npos;
  }
  if (container.kind == Kind::dict) return find(container, value) != nullptr;
  if (container.is_undefined()) return false;
  if (!container.is_sequence())
    fail("argument of type '" + type_name(container.kind) + "' is not iterable");
  if (container.kind == Kind::iterator) {
    // Goes through it up to the value.
    Stream& rest = *container.stream;
    while (rest.at < rest.size) {
      spend(1);
      if (equal(rest.items[rest.at++], value)) return true;
    }
    return false;
  }
  spend(container.size);
  return std::any_of(container.items, container.items + container.size,
                     [&](const Datum& one) { return equal(one, value); });
}

Items Renderer::items_of(const Datum& value) {
  if (value.kind == Kind::iterator) {
    const uint32_t from = std::exchange(value.stream->at, value.stream->size);
    return {value.stream->items + from, value.stream->size - from};
  }
  if (value.is_sequence()) return {value.items, value.size};
  if (value.kind == Kind::dict) {
    Datum* keys = take<Datum>(value.size);
    for (uint32_t i = 0; i < value.size; ++i) keys[i] = value.items[2 * size_t{i}];
    return {keys, value.size};
  }
  if (value.is_string()) {
    std::string_view text = value.view();
    auto size = static_cast<uint32_t>(unicode::length(text));
    Datum* chars = take<Datum>(size);
    Origins origins(value);
    size_t at = 0;
    for (uint32_t i = 0; i < size; ++i) {
      uint32_t bytes = unicode::decode(text, at).size;
      chars[i] = Datum::string(text.substr(at, bytes), origins.at(at).message);
      at += bytes;
    }
    return {chars, size};
  }
  return {};
}

Items Renderer::need_items(const Datum& value) {
  if (!value.is_sequence() && value.kind != Kind::dict && !value.is_string() &&
      !value.is_undefined())
    fail("'" + type_name(value.kind) + "' object is not iterable");
  if (value.holder == Datum::kUnsafe) fail_undefined(value);
  return items_of(value);
}

uint32_t Renderer::length_of(Loop& loop) {
  has(loop, SIZE_MAX);
  loop.asked = loop.found;
  return loop.found;
}

// As Python's: what is equal has one, also of numbers of several kinds.
size_t Renderer::hash(const Datum& value, int depth) {
  auto mixed_in = [](size_t seed, size_t more) {
    return (seed ^ more) * size_t{0x9E3779B97F4A7C15U} + (seed >> 7);
  };
  switch (value.kind) {
    case Kind::list:
    case Kind::dict:
      fail("unhashable type: '" + type_name(value.kind) + "'");
    case Kind::view:
      if (value.holder != static_cast<uint8_t>(View::values))
        fail("unhashable type: '" + view_name(value) + "'");
      break;
    case Kind::boolean:
    case Kind::integer:
    case Kind::real:
    case Kind::big: {
      // Beyond 2^53 many integers have the hash of one real number, which does no harm.
      const double real = real_of(value);
      return std::hash<double>()(real == 0 ? 0 : real);
    }
    case Kind::string:
      spend(value.size / 8);
      return std::hash<std::string_view>()(value.view());
    case Kind::tuple:
    case Kind::range: {
      if (depth > kDeepestValue) fail("a value is nested too deeply");
      spend(value.size);
      size_t out = static_cast<size_t>(value.kind);
      for (uint32_t i = 0; i < value.size; ++i)
        out = mixed_in(out, hash(value.items[i], depth + 1));
      return out;
    }
    default:
      break;
  }
  return static_cast<size_t>(value.kind);
}

std::string Renderer::view_name(const Datum& view) {
  switch (static_cast<View>(view.holder)) {
    case View::keys:
      return "dict_keys";
    case View::values:
      return "dict_values";
    case View::items:
      break;
  }
  return "dict_items";
}

uint32_t Renderer::length(const Datum& value) {
  switch (value.kind) {
    case Kind::string:
      spend(value.size / 8);
      return static_cast<uint32_t>(unicode::length(value.view()));
    case Kind::list:
    case Kind::tuple:
    case Kind::range:
    case Kind::view:
    case Kind::dict:
      return value.size;
    case Kind::undefined:
      return 0;
    case Kind::loop:
      return length_of(*value.loop);
    default:
      fail("object of type '" + type_name(value.kind) + "' has no len()");
  }
}

}  // namespace meshwright::chat
