#include "sdk/text/chat/names.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace meshwright::chat {

namespace {

template <class T, size_t N>
using Table = std::array<std::pair<std::string_view, T>, N>;

template <class T, size_t N>
T find(const Table<T, N>& table, std::string_view name) {
  const auto* found =
      std::find_if(table.begin(), table.end(), [&](const auto& one) { return one.first == name; });
  return found == table.end() ? T::unknown : found->second;
}

constexpr auto kFilters = std::to_array<std::pair<std::string_view, Filter>>({
    {"trim", Filter::trim},
    {"tojson", Filter::tojson},
    {"length", Filter::length},
    {"count", Filter::length},
    {"list", Filter::list},
    {"string", Filter::string},
    {"join", Filter::join},
    {"items", Filter::items},
    {"selectattr", Filter::selectattr},
    {"rejectattr", Filter::rejectattr},
    {"select", Filter::select},
    {"reject", Filter::reject},
    {"default", Filter::default_},
    {"d", Filter::default_},
    {"map", Filter::map},
    {"sort", Filter::sort},
    {"unique", Filter::unique},
    {"dictsort", Filter::dictsort},
    {"first", Filter::first},
    {"last", Filter::last},
    {"upper", Filter::upper},
    {"lower", Filter::lower},
    {"title", Filter::title},
    {"capitalize", Filter::capitalize},
    {"replace", Filter::replace},
    {"indent", Filter::indent},
    {"int", Filter::int_},
    {"float", Filter::float_},
    {"abs", Filter::abs},
    {"round", Filter::round},
    {"min", Filter::min},
    {"max", Filter::max},
    {"reverse", Filter::reverse},
    {"safe", Filter::safe},
    {"escape", Filter::escape},
    {"e", Filter::escape},
    {"sum", Filter::sum},
    {"batch", Filter::batch},
    {"slice", Filter::slice},
    {"groupby", Filter::groupby},
    {"attr", Filter::attr},
    {"truncate", Filter::truncate},
    {"wordcount", Filter::wordcount},
    {"format", Filter::format},
});

constexpr auto kTests = std::to_array<std::pair<std::string_view, Test>>({
    {"defined", Test::defined},
    {"undefined", Test::undefined},
    {"none", Test::none},
    {"string", Test::string},
    {"iterable", Test::iterable},
    {"mapping", Test::mapping},
    {"false", Test::false_},
    {"true", Test::true_},
    {"boolean", Test::boolean},
    {"number", Test::number},
    {"integer", Test::integer},
    {"float", Test::float_},
    {"sequence", Test::sequence},
    {"odd", Test::odd},
    {"even", Test::even},
    {"equalto", Test::eq},
    {"eq", Test::eq},
    {"==", Test::eq},
    {"ne", Test::ne},
    {"!=", Test::ne},
    {"gt", Test::gt},
    {"greaterthan", Test::gt},
    {">", Test::gt},
    {"ge", Test::ge},
    {">=", Test::ge},
    {"lt", Test::lt},
    {"lessthan", Test::lt},
    {"<", Test::lt},
    {"le", Test::le},
    {"<=", Test::le},
    {"in", Test::in},
    {"sameas", Test::sameas},
    {"divisibleby", Test::divisibleby},
    {"lower", Test::lower},
    {"upper", Test::upper},
    {"callable", Test::callable},
    {"filter", Test::filter},
    {"test", Test::test},
    {"escaped", Test::escaped},
});

constexpr auto kStringMethods = std::to_array<std::pair<std::string_view, Method>>({
    {"strip", Method::strip},
    {"lstrip", Method::lstrip},
    {"rstrip", Method::rstrip},
    {"split", Method::split},
    {"rsplit", Method::rsplit},
    {"startswith", Method::startswith},
    {"endswith", Method::endswith},
    {"replace", Method::replace},
    {"upper", Method::upper},
    {"lower", Method::lower},
    {"title", Method::title},
    {"capitalize", Method::capitalize},
    {"format", Method::format},
    {"join", Method::join},
    {"find", Method::find},
    {"rfind", Method::rfind},
    {"index", Method::index},
    {"count", Method::count},
    {"splitlines", Method::splitlines},
    {"removeprefix", Method::removeprefix},
    {"removesuffix", Method::removesuffix},
    {"isdigit", Method::isdigit},
    {"isalpha", Method::isalpha},
    {"isalnum", Method::isalnum},
    {"isspace", Method::isspace},
    {"isupper", Method::isupper},
    {"islower", Method::islower},
    {"zfill", Method::zfill},
    {"casefold", Method::casefold},
    {"center", Method::center},
    {"encode", Method::other_string},
    {"expandtabs", Method::expandtabs},
    {"format_map", Method::other_string},
    {"isascii", Method::isascii},
    {"isdecimal", Method::isdecimal},
    {"isidentifier", Method::isidentifier},
    {"isnumeric", Method::isnumeric},
    {"isprintable", Method::isprintable},
    {"istitle", Method::istitle},
    {"ljust", Method::ljust},
    {"maketrans", Method::other_string},
    {"partition", Method::partition},
    {"rindex", Method::rindex},
    {"rjust", Method::rjust},
    {"rpartition", Method::rpartition},
    {"swapcase", Method::swapcase},
    {"translate", Method::other_string},
    {"striptags", Method::other_markup},
    {"unescape", Method::other_markup},
});

constexpr auto kDictMethods = std::to_array<std::pair<std::string_view, Method>>({
    {"get", Method::get},
    {"items", Method::items},
    {"keys", Method::keys},
    {"values", Method::values},
    {"copy", Method::copy},
    {"clear", Method::mutating},
    {"pop", Method::mutating},
    {"popitem", Method::mutating},
    {"setdefault", Method::mutating},
    {"update", Method::mutating},
    {"fromkeys", Method::mutating},
});

constexpr auto kListMethods = std::to_array<std::pair<std::string_view, Method>>({
    {"count", Method::count},
    {"index", Method::index},
    {"copy", Method::copy},
    {"append", Method::mutating},
    {"clear", Method::mutating},
    {"extend", Method::mutating},
    {"insert", Method::mutating},
    {"pop", Method::mutating},
    {"remove", Method::mutating},
    {"reverse", Method::mutating},
    {"sort", Method::mutating},
});

constexpr auto kTupleMethods = std::to_array<std::pair<std::string_view, Method>>({
    {"count", Method::count},
    {"index", Method::index},
});

}  // namespace

Filter filter_named(std::string_view name) { return find(kFilters, name); }
Test test_named(std::string_view name) { return find(kTests, name); }

Method method_named(Owner owner, std::string_view name) {
  switch (owner) {
    case Owner::string:
      return find(kStringMethods, name);
    case Owner::dict:
      return find(kDictMethods, name);
    case Owner::list:
      return find(kListMethods, name);
    case Owner::tuple:
      return find(kTupleMethods, name);
  }
  return Method::unknown;
}

}  // namespace meshwright::chat
