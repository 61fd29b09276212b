#include "sdk/text/chat/names.h"

#include <algorithm>
#include <array>
#include <boost/describe/enumerators.hpp>
#include <boost/mp11/algorithm.hpp>
#include <span>
#include <utility>

namespace meshwright::chat {

namespace {

template <class T>
using Named = std::pair<std::string_view, T>;

template <class T>
T find(std::span<const Named<T>> table, std::string_view name) {
  const auto found = std::ranges::find(table, name, &Named<T>::first);
  return found == table.end() ? T::unknown : found->second;
}

// All of an enumeration by their own names.
template <class T>
T own_named(std::string_view name) {
  static constexpr auto kTable = [] {
    using All = boost::describe::describe_enumerators<T>;
    std::array<Named<T>, boost::mp11::mp_size<All>::value> out;
    boost::mp11::mp_for_each<All>([&, at = size_t{0}](auto one) mutable {
      std::string_view own = one.name;
      if (own.ends_with('_')) own.remove_suffix(1);
      out[at++] = {own, one.value};
    });
    return out;
  }();
  return find<T>(kTable, name);
}

constexpr Named<Filter> kOtherFilters[] = {
    {"count", Filter::length}, {"d", Filter::default_}, {"e", Filter::escape}};

constexpr Named<Test> kOtherTests[] = {
    {"equalto", Test::eq},     {"==", Test::eq}, {"!=", Test::ne},
    {"greaterthan", Test::gt}, {">", Test::gt},  {">=", Test::ge},
    {"lessthan", Test::lt},    {"<", Test::lt},  {"<=", Test::le}};

constexpr Named<Method> kOtherStringMethods[] = {
    {"encode", Method::other_string},    {"format_map", Method::other_string},
    {"maketrans", Method::other_string}, {"translate", Method::other_string},
    {"striptags", Method::other_markup}, {"unescape", Method::other_markup}};

constexpr Named<Method> kDictMethods[] = {
    {"get", Method::get},         {"items", Method::items},      {"keys", Method::keys},
    {"values", Method::values},   {"copy", Method::copy},        {"clear", Method::mutating},
    {"pop", Method::mutating},    {"popitem", Method::mutating}, {"setdefault", Method::mutating},
    {"update", Method::mutating}, {"fromkeys", Method::mutating}};

// Those that tuples have, too, are the first two.
constexpr Named<Method> kListMethods[] = {
    {"count", Method::count},      {"index", Method::index},    {"copy", Method::copy},
    {"append", Method::mutating},  {"clear", Method::mutating}, {"extend", Method::mutating},
    {"insert", Method::mutating},  {"pop", Method::mutating},   {"remove", Method::mutating},
    {"reverse", Method::mutating}, {"sort", Method::mutating}};

}  // namespace

Filter filter_named(std::string_view name) {
  const Filter own = own_named<Filter>(name);
  return own != Filter::unknown ? own : find<Filter>(kOtherFilters, name);
}

Test test_named(std::string_view name) {
  const Test own = own_named<Test>(name);
  return own != Test::unknown ? own : find<Test>(kOtherTests, name);
}

Method method_named(Owner owner, std::string_view name) {
  switch (owner) {
    case Owner::string: {
      const Method own = own_named<Method>(name);
      if (own != Method::unknown && own <= Method::zfill) return own;
      return find<Method>(kOtherStringMethods, name);
    }
    case Owner::dict:
      return find<Method>(kDictMethods, name);
    case Owner::list:
      return find<Method>(kListMethods, name);
    case Owner::tuple:
      return find(std::span<const Named<Method>>(kListMethods).first(2), name);
  }
  return Method::unknown;
}

}  // namespace meshwright::chat
