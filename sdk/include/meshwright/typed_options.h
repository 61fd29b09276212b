// Options as a struct: a member is declared once, with its option, and read without its name.
//
//   enum class Offload : uint8_t { none, cpu };  // in the order of the choices
//   struct Own {
//     int64_t depth;
//     std::optional<bool> reshard;
//     Offload offload;
//   };
//   constexpr auto kOptions = typed_options<Own>(
//       field(&Own::depth, int_option("depth", "1", 0, "Units gathered ahead.")),
//       field(&Own::reshard, with_flags(option("reshard", MESHWRIGHT_BOOL, "\"auto\"", "..."),
//                                       MESHWRIGHT_OPTIONAL)),
//       field(&Own::offload, choice_option("offload", "\"none\"", "none|cpu", "...")));
//
//   Own read(const StrategyConfig& config) { return kOptions.read(config.own()); }
//
// `.options = kOptions.declared` in describe() (plugin_main.h) gives the plugin its table.
//
// A member is bool, int64_t, double, std::string, an enumeration (an option with choices), DType,
// std::vector<std::string>, or std::optional of one, which an option needs that may be not set. A
// member and an option of other types do not compile.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <tuple>
#include <type_traits>

#include "meshwright/options.h"

namespace meshwright {

template <class Struct, class Member>
struct OptionField {
  Member Struct::* member;
  meshwright_option option;
};

namespace detail {

template <class T>
struct OptionReader;
template <>
struct OptionReader<bool> {
  static constexpr uint32_t kType = MESHWRIGHT_BOOL;
  static bool read(const Options& from, const char* name) { return from.get_bool(name); }
};
template <>
struct OptionReader<int64_t> {
  static constexpr uint32_t kType = MESHWRIGHT_INT;
  static int64_t read(const Options& from, const char* name) { return from.get_int(name); }
};
template <>
struct OptionReader<double> {
  static constexpr uint32_t kType = MESHWRIGHT_NUMBER;
  static double read(const Options& from, const char* name) { return from.get_number(name); }
};
template <>
struct OptionReader<std::string> {
  static constexpr uint32_t kType = MESHWRIGHT_STRING;
  static std::string read(const Options& from, const char* name) { return from.get_string(name); }
};
template <>
struct OptionReader<std::vector<std::string>> {
  static constexpr uint32_t kType = MESHWRIGHT_STRING_LIST;
  static std::vector<std::string> read(const Options& from, const char* name) {
    return from.get_strings(name);
  }
};
template <>
struct OptionReader<DType> {
  static constexpr uint32_t kType = MESHWRIGHT_STRING;
  static DType read(const Options& from, const char* name) { return *from.find_dtype(name); }
};
template <class T>
  requires std::is_enum_v<T>
struct OptionReader<T> {
  static constexpr uint32_t kType = MESHWRIGHT_STRING;
  static T read(const Options& from, const char* name) {
    return static_cast<T>(*from.find_choice(name));
  }
};
template <class T>
struct OptionReader<std::optional<T>> {
  static constexpr uint32_t kType = OptionReader<T>::kType;
  static std::optional<T> read(const Options& from, const char* name) {
    return from.is_set(name) ? std::optional<T>(OptionReader<T>::read(from, name)) : std::nullopt;
  }
};

template <class T>
struct OptionMember {
  using Value = T;
  static constexpr bool kMayBeUnset =
      std::is_same_v<T, std::string> || std::is_same_v<T, std::vector<std::string>>;
};
template <class T>
struct OptionMember<std::optional<T>> {
  using Value = T;
  static constexpr bool kMayBeUnset = true;
};

// Why the option cannot be read into such a member; nullptr: it can.
template <class Member>
constexpr const char* misfit(const meshwright_option& option) {
  using Value = OptionMember<Member>::Value;
  constexpr bool dtype = std::is_same_v<Value, DType>;
  if (option.type != OptionReader<Member>::kType) return "the option's type is not the member's";
  if (dtype && (option.flags & MESHWRIGHT_DTYPE) == 0)
    return "a DType needs an option with MESHWRIGHT_DTYPE";
  if (std::is_enum_v<Value> && !dtype && option.choices == nullptr)
    return "an enumeration needs an option with choices";
  if (!OptionMember<Member>::kMayBeUnset &&
      (option.default_value == nullptr || (option.flags & MESHWRIGHT_OPTIONAL) != 0))
    return "an option that may be not set needs a std::optional";
  return nullptr;
}

}  // namespace detail

// Does not compile where the option cannot be read into the member.
template <class Struct, class Member>
consteval OptionField<Struct, Member> field(Member Struct::* member,
                                            const meshwright_option& option) {
  if (const char* why = detail::misfit<Member>(option)) throw why;
  return {member, option};
}

template <class Struct, class... Members>
struct TypedOptions {
  std::array<meshwright_option, sizeof...(Members)> declared;  // for describe()
  std::tuple<Members Struct::*...> members;

  // The values of the plugin's table. Throws Error(internal) for a table of another schema.
  Struct read(const Options& table) const {
    Struct out{};
    each([&]<class Member>(Member Struct::* member, const char* name) {
      out.*member = detail::OptionReader<Member>::read(table, name);
    });
    return out;
  }
  // The option's name, its whole key ("distributed.mine.depth"), and whether somebody set it.
  template <class Member>
  std::string name(Member Struct::* member) const {
    std::string out;
    each([&]<class Other>(Other Struct::* other, const char* name) {
      if constexpr (std::is_same_v<Other, Member>)
        if (other == member) out = name;
    });
    return out;
  }
  template <class Member>
  std::string key(const Options& table, Member Struct::* member) const {
    return table.schema().table + "." + name(member);
  }
  template <class Member>
  bool is_given(const Options& table, Member Struct::* member) const {
    return table.is_given(name(member));
  }

 private:
  void each(const auto& body) const {
    std::apply(
        [&](auto... member) {
          size_t i = 0;
          (body(member, declared[i++].name), ...);
        },
        members);
  }
};

template <class Struct, class... Members>
consteval TypedOptions<Struct, Members...> typed_options(OptionField<Struct, Members>... fields) {
  return {{fields.option...}, {fields.member...}};
}

}  // namespace meshwright
