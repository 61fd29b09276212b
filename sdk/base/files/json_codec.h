// Untrusted JSON: bounded, and with one meaning. Numbers with a point are the nearest double, which
// Boost.JSON's own reader misses by a bit at times.
#pragma once

#include <boost/describe/class.hpp>
#include <boost/describe/enum.hpp>
#include <boost/describe/enum_to_string.hpp>
#include <boost/describe/enumerators.hpp>
#include <boost/describe/members.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <boost/mp11/algorithm.hpp>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "meshwright/error.h"

namespace meshwright::base {

struct JsonBounds {
  size_t depth = 8;
  size_t elements = 4096;  // of an array
};

struct JsonProblem {
  int64_t offset = 0;  // in the text
  std::string what;    // "is not valid JSON: ...", "lists \"a\" twice"
};

// Every object has at most a million members with keys of at most 4096 bytes, none of them twice.
// Throws JsonProblem.
boost::json::value parse_strictly(std::string_view text, const JsonBounds& bounds);
// What this program has written for another of its processes: of any length, and texts may hold any
// bytes, as names of files do. Throws JsonProblem.
boost::json::value parse_own(std::string_view text);

namespace codec {

// Structs as JSON and back, by the members that BOOST_DESCRIBE_STRUCT lists, in a .cpp file beside
// their use: for files of ours, and for what ranks tell each other. Only for .cpp files: it takes
// long to compile.
//
// A key is a member's name; for_ is "for". A member that is an optional may be absent or null, and
// every other one must be there; a key that no member has is refused. An enum is its number, or its
// name where BOOST_DESCRIBE_ENUM lists them; a pair is a list of two. JSON has no infinite numbers,
// so a double may also be a text of its digits: "inf", "nan".

// Where a value stands in its document, whose own name is the outermost key.
struct Place {
  const Place* in = nullptr;
  std::string_view key = {};
  size_t index = 0;  // in a list, which has no keys
};
// "\"files\"[0] lacks \"name\"" is thrown as a JsonProblem.
[[noreturn]] void refuse(const Place& place, const std::string& what);
// Of a key that is not among these.
[[noreturn]] void refuse_keys(const Place& place, const boost::json::object& object,
                              const std::vector<std::string_view>& known);
double read_double(const boost::json::value& from, const Place& place);
std::string double_text(double value);

template <class T>
concept Optional = requires(T value) { value.has_value(), value.emplace(); };
template <class T>
concept Map = requires { typename T::mapped_type; };
template <class T>
concept Pair = requires(T value) { value.first, value.second; };
template <class T>
concept List = requires(T value) { value.begin(), value.emplace_back(); };
template <class T>
using Members = boost::describe::describe_members<T, boost::describe::mod_public>;

constexpr std::string_view key_of(std::string_view member) {
  return member.substr(0, member.size() - (member.ends_with('_') ? 1 : 0));
}

// Not inline: GCC 12 takes the empty optionals of what is read here for values that may be used.
template <class T>
[[gnu::noinline]] void read(const boost::json::value& from, T& to, const Place& place) {
  namespace json = boost::json;
  if constexpr (std::same_as<T, json::value>) {
    to = from;
  } else if constexpr (std::same_as<T, bool>) {
    if (!from.is_bool()) refuse(place, "needs true or false");
    to = from.get_bool();
  } else if constexpr (std::integral<T>) {
    boost::system::error_code failed;
    if (!from.is_double()) to = from.to_number<T>(failed);
    if (from.is_double() || failed)
      refuse(place,
             std::is_signed_v<T> ? "needs a whole number" : "needs a whole number of at least 0");
  } else if constexpr (std::floating_point<T>) {
    to = static_cast<T>(read_double(from, place));
  } else if constexpr (std::same_as<T, std::string>) {
    if (!from.is_string()) refuse(place, "needs a string");
    to = from.get_string();
  } else if constexpr (std::is_enum_v<T>) {
    if constexpr (boost::describe::has_describe_enumerators<T>::value) {
      bool found = false;
      boost::mp11::mp_for_each<boost::describe::describe_enumerators<T>>([&](auto known) {
        if (!from.is_string() || from.get_string() != known.name) return;
        to = known.value;
        found = true;
      });
      if (!found) refuse(place, "has an unknown name: " + json::serialize(from));
    } else {
      std::underlying_type_t<T> number{};
      read(from, number, place);
      to = static_cast<T>(number);
    }
  } else if constexpr (Optional<T>) {
    to.reset();
    if (!from.is_null()) read(from, to.emplace(), place);
  } else if constexpr (Map<T>) {
    if (!from.is_object()) refuse(place, "needs an object");
    to.clear();
    for (const auto& [key, value] : from.get_object()) read(value, to[key], Place{&place, key});
  } else if constexpr (Pair<T>) {
    if (!from.is_array() || from.get_array().size() != 2) refuse(place, "needs a list of two");
    read(from.get_array()[0], to.first, Place{&place, {}, 0});
    read(from.get_array()[1], to.second, Place{&place, {}, 1});
  } else if constexpr (List<T>) {
    if (!from.is_array()) refuse(place, "needs a list");
    const json::array& items = from.get_array();
    to.clear();
    to.reserve(items.size());
    for (size_t i = 0; i < items.size(); ++i) {
      typename T::value_type item{};
      read(items[i], item, Place{&place, {}, i});
      to.push_back(std::move(item));
    }
  } else {
    if (!from.is_object()) refuse(place, "needs an object");
    const json::object& object = from.get_object();
    size_t known = 0;
    boost::mp11::mp_for_each<Members<T>>([&](auto member) {
      constexpr std::string_view key = key_of(decltype(member)::name);
      auto& out = to.*member.pointer;
      if (const json::value* value = object.if_contains(key)) {
        ++known;
        read(*value, out, Place{&place, key});
      } else if constexpr (!Optional<std::remove_reference_t<decltype(out)>>) {
        refuse(place, "lacks \"" + std::string(key) + "\"");
      }
    });
    if (known == object.size()) return;
    std::vector<std::string_view> keys;
    boost::mp11::mp_for_each<Members<T>>([&](auto member) { keys.push_back(key_of(member.name)); });
    refuse_keys(place, object, keys);
  }
}

}  // namespace codec

template <class T>
boost::json::value json_of(const T& from) {
  namespace json = boost::json;
  if constexpr (std::same_as<T, json::value> || std::integral<T>) {
    return from;
  } else if constexpr (std::floating_point<T>) {
    return std::isfinite(from) ? json::value(from) : json::value(codec::double_text(from));
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    return json::string(std::string_view(from));
  } else if constexpr (std::is_enum_v<T>) {
    if constexpr (boost::describe::has_describe_enumerators<T>::value)
      return json::string(boost::describe::enum_to_string(from, ""));
    else
      return static_cast<std::underlying_type_t<T>>(from);
  } else if constexpr (codec::Optional<T>) {
    return from ? json_of(*from) : json::value(nullptr);
  } else if constexpr (codec::Map<T>) {
    json::object out;
    for (const auto& [key, value] : from) out[key] = json_of(value);
    return out;
  } else if constexpr (codec::Pair<T>) {
    return json::array{json_of(from.first), json_of(from.second)};
  } else if constexpr (codec::List<T>) {
    json::array out;
    out.reserve(from.size());
    for (const typename T::value_type& item : from) out.push_back(json_of(item));
    return out;
  } else {
    json::object out;
    boost::mp11::mp_for_each<codec::Members<T>>([&](auto member) {
      const auto& value = from.*member.pointer;
      if constexpr (codec::Optional<std::remove_cvref_t<decltype(value)>>)
        if (!value) return;
      out[codec::key_of(member.name)] = json_of(value);
    });
    return out;
  }
}

// `name`: of the whole value in the words of a JsonProblem, "the file".
template <class T>
T read_json(const boost::json::value& from, std::string_view name) {
  T out{};
  codec::read(from, out, codec::Place{nullptr, name});
  return out;
}

// What one process writes and another reads.
template <class T>
std::string json_text(const T& from) {
  return boost::json::serialize(json_of(from));
}
template <class T>
T read_json_text(std::string_view text) {
  return read_json<T>(parse_own(text), "the text");
}

// An error as a text that another process reads again, with all that it says.
std::string error_text(const Error& error);
// nullopt: it is none of error_text(), as another version of the program may have sent.
std::optional<Error> error_in(const std::string& text);

}  // namespace meshwright::base
