// Typed options: a schema says what a table may hold, Options holds it with the place each value
// came from.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "meshwright/dtype.h"
#include "meshwright/error.h"
#include "meshwright/export.h"
#include "meshwright/plugin.h"

namespace meshwright {

using StringMap = std::vector<std::pair<std::string, std::string>>;  // in file order
using StringTable = std::vector<std::vector<std::string>>;
// monostate = not set ("none", "auto", or absent without a default).
using OptionValue =
    std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<std::string>,
                 std::vector<double>, StringMap, StringTable>;

// A value as TOML text: true, 2, "auto", ["a", "b"].
MESHWRIGHT_API std::string to_toml(const OptionValue& value);

// The options of one table. A view over static meshwright_option arrays (the plugin's or the
// engine's own).
struct OptionSchema {
  std::string table;  // dotted: "distributed.<strategy>"
  std::string owner;  // who checks it: "engine", or the plugin's strategy name
  std::vector<const meshwright_option*> options;
  std::shared_ptr<const Later> later = {};

  MESHWRIGHT_API const meshwright_option* find(std::string_view name) const;
};
// The schema of a whole array, which must outlive it.
MESHWRIGHT_API OptionSchema make_schema(std::string table, std::string owner,
                                        std::span<const meshwright_option> options);

// Checks one value against one option: type, range, choices, dtype name. Returns the value in its
// normal form (an integer becomes a double where the option is a number; "none"/"auto" become
// monostate where optional and not a choice). Throws Error(wrong_type | out_of_range | bad_choice |
// bad_dtype) with `key` set and valid settings as help.
MESHWRIGHT_API OptionValue check_option(const meshwright_option& option, const OptionValue& value,
                                        const std::string& key);
// The default of an option, parsed from its literal; monostate when it has none. Throws
// Error(plugin_bad_descriptor).
MESHWRIGHT_API OptionValue default_of(const meshwright_option& option);
// "true or false", "integer >= 0", "one of a, b": the type and range as words.
MESHWRIGHT_API std::string describe_type(const meshwright_option& option);

// The checked values of one table, defaults filled in.
class MESHWRIGHT_API Options {
 public:
  Options();
  explicit Options(const OptionSchema& schema);  // every option at its default
  Options(const Options&);
  Options(Options&&) noexcept;
  Options& operator=(const Options&);
  Options& operator=(Options&&) noexcept;
  ~Options();

  // Sets a checked value; throws as check_option, or Error(unknown_key) with the nearest name.
  void set(std::string_view name, const OptionValue& value,
           Origin origin = {Origin::Source::api, {}, 0, 0});

  bool is_set(std::string_view name) const;    // has a value, given or default
  bool is_given(std::string_view name) const;  // set() was called: not merely the default
  const OptionValue& value(std::string_view name) const;
  Origin origin(std::string_view name) const;
  const OptionSchema& schema() const;

  // Typed access. Throws Error(internal) when the schema has no such option or the value has
  // another type.
  bool get_bool(std::string_view name) const;
  int64_t get_int(std::string_view name) const;
  double get_number(std::string_view name) const;
  std::string get_string(std::string_view name) const;                // "" when not set
  std::vector<std::string> get_strings(std::string_view name) const;  // none when not set
  // The place of the value among the option's choices, from 0; nullopt when not set.
  std::optional<size_t> find_choice(std::string_view name) const;
  std::optional<int64_t> find_int(std::string_view name) const;
  std::optional<bool> find_bool(std::string_view name) const;
  std::optional<DType> find_dtype(std::string_view name) const;

 private:
  struct Table;
  std::unique_ptr<Table> table_;
};

// An error about the option `name` of a table, at the place where it was set; its help is
// "set TABLE.NAME = INSTEAD".
MESHWRIGHT_API Error option_error(const Options& options, std::string_view name, ErrorCode code,
                                  std::string message, std::string_view instead);

// Makes the literal for a plugin's option array: {MESHWRIGHT_BOOL, "false", "doc"}-style helpers
// for C++ authors.
constexpr meshwright_option option(const char* name, uint32_t type, const char* default_value,
                                   const char* doc) {
  return {sizeof(meshwright_option),
          name,
          type,
          MESHWRIGHT_NO_MIN | MESHWRIGHT_NO_MAX,
          default_value,
          0,
          0,
          nullptr,
          nullptr,
          doc};
}
constexpr meshwright_option bool_option(const char* name, bool default_value, const char* doc) {
  return option(name, MESHWRIGHT_BOOL, default_value ? "true" : "false", doc);
}
// An integer of at least `min`.
constexpr meshwright_option int_option(const char* name, const char* default_value, double min,
                                       const char* doc) {
  meshwright_option o = option(name, MESHWRIGHT_INT, default_value, doc);
  o.min = min;
  o.flags = MESHWRIGHT_NO_MAX;
  return o;
}
// From `min` to `max`.
constexpr meshwright_option int_option(const char* name, const char* default_value, double min,
                                       double max, const char* doc) {
  meshwright_option o = int_option(name, default_value, min, doc);
  o.max = max;
  o.flags = 0;
  return o;
}
// A number, whole or not, of at least `min`.
constexpr meshwright_option number_option(const char* name, const char* default_value, double min,
                                          const char* doc) {
  meshwright_option o = option(name, MESHWRIGHT_NUMBER, default_value, doc);
  o.min = min;
  o.flags = MESHWRIGHT_NO_MAX;
  return o;
}
// From `min` to `max`.
constexpr meshwright_option number_option(const char* name, const char* default_value, double min,
                                          double max, const char* doc) {
  meshwright_option o = number_option(name, default_value, min, doc);
  o.max = max;
  o.flags = 0;
  return o;
}
constexpr meshwright_option choice_option(const char* name, const char* default_value,
                                          const char* choices, const char* doc) {
  meshwright_option o = option(name, MESHWRIGHT_STRING, default_value, doc);
  o.choices = choices;
  return o;
}
// The option that pins the back end of the mesh's groups; see check_backend().
constexpr meshwright_option backend_option() {
  meshwright_option o = choice_option("backend", nullptr, "nccl|gloo",
                                      "Back end of the mesh's groups. Not set: dist_env.backend.");
  o.flags |= MESHWRIGHT_OPTIONAL;
  return o;
}
constexpr meshwright_option with_flags(meshwright_option o, uint32_t flags) {
  o.flags |= flags;
  return o;
}
constexpr meshwright_option with_aliases(meshwright_option o, const char* aliases) {
  o.aliases = aliases;
  return o;
}

}  // namespace meshwright
