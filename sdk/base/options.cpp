#include "meshwright/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "checks.h"
#include "text.h"

namespace meshwright {
namespace {

const char* type_word(const OptionValue& value) {
  constexpr const char* words[] = {
      "nothing",           "a boolean",          "an integer",
      "a float",           "a string",           "a list of strings",
      "a list of numbers", "a table of strings", "a list of string lists"};
  return words[value.index()];
}

bool accepts(const meshwright_option& option, uint32_t type) { return (option.type & type) != 0; }
bool has_flag(const meshwright_option& option, uint32_t flag) { return (option.flags & flag) != 0; }

std::string number_text(double v) { return to_toml(OptionValue(v)); }

// " from 0 to 1", " of at least 0", ...; empty without bounds.
std::string range_text(const meshwright_option& option) {
  bool low = !has_flag(option, MESHWRIGHT_NO_MIN), high = !has_flag(option, MESHWRIGHT_NO_MAX),
       open = has_flag(option, MESHWRIGHT_OPEN_MIN);
  if (low && high)
    return (open ? " above " : " from ") + number_text(option.min) + " to " +
           number_text(option.max);
  if (low) return (open ? " above " : " of at least ") + number_text(option.min);
  return high ? " of at most " + number_text(option.max) : std::string();
}

// An example of each accepted form, as TOML text.
std::vector<std::string> examples(const meshwright_option& option) {
  std::vector<std::string> out;
  auto add = [&](std::string text) {
    if (std::find(out.begin(), out.end(), text) == out.end() && out.size() < 3)
      out.push_back(std::move(text));
  };
  if (option.default_value != nullptr) add(option.default_value);
  if (accepts(option, MESHWRIGHT_BOOL)) add("true"), add("false");
  if (option.choices != nullptr)
    for (const std::string& choice : text::split(option.choices, '|'))
      add(to_toml(OptionValue(choice)));
  if (accepts(option, MESHWRIGHT_STRING) && has_flag(option, MESHWRIGHT_DTYPE) &&
      option.choices == nullptr)
    add("\"float32\""), add("\"bfloat16\"");
  if (accepts(option, MESHWRIGHT_INT | MESHWRIGHT_NUMBER)) {
    double low = has_flag(option, MESHWRIGHT_NO_MIN)
                     ? 1
                     : option.min + (has_flag(option, MESHWRIGHT_OPEN_MIN) ? 1 : 0);
    if (!has_flag(option, MESHWRIGHT_NO_MAX) && low > option.max) low = option.max;
    add(number_text(low));
    if (has_flag(option, MESHWRIGHT_NO_MAX) || low + 1 <= option.max) add(number_text(low + 1));
  }
  if (has_flag(option, MESHWRIGHT_OPTIONAL)) add("\"none\"");
  if (out.empty() && accepts(option, MESHWRIGHT_STRING_LIST)) add("[\"a\", \"b\"]");
  if (out.empty() && accepts(option, MESHWRIGHT_NUMBER_LIST)) add("[0.9, 0.95]");
  return out;
}

Error with_examples(Error error, const meshwright_option& option, const std::string& key) {
  error.key(key);
  for (const std::string& example : examples(option)) error.help("set " + key + " = " + example);
  return error;
}

// `index`: the place in a list, -1 for a number of its own.
void check_range(const meshwright_option& option, double v, const std::string& key,
                 ptrdiff_t index = -1) {
  bool low = !has_flag(option, MESHWRIGHT_NO_MIN) &&
             (has_flag(option, MESHWRIGHT_OPEN_MIN) ? v <= option.min : v < option.min);
  bool high = !has_flag(option, MESHWRIGHT_NO_MAX) && v > option.max;
  if (!low && !high && !std::isnan(v)) return;
  std::string what = index < 0 ? key : "item " + std::to_string(index + 1) + " of " + key;
  std::string range = index < 0 ? describe_type(option) : "a number" + range_text(option);
  throw with_examples(
      Error(ErrorCode::out_of_range, what + " = " + number_text(v) + ", but it must be " + range),
      option, key);
}

std::string check_choice(const meshwright_option& option, const std::string& value,
                         const std::string& key) {
  if (option.choices == nullptr) return value;
  std::vector<std::string> names;
  for (const std::string& choice : text::split(option.choices, '|')) {
    if (choice == value) return value;
    if (has_flag(option, MESHWRIGHT_IGNORE_CASE) && text::normal(choice) == text::normal(value))
      return std::string(choice);
    names.emplace_back(choice);
  }
  Error error(ErrorCode::bad_choice,
              key + " = \"" + value + "\", but it must be " + describe_type(option));
  if (std::string near = nearest_name(value, names); !near.empty())
    error.help("did you mean \"" + near + "\"?");
  throw with_examples(std::move(error), option, key);
}

// A dtype by any of its names; where the option has choices, one of these.
void check_dtype(const meshwright_option& option, const std::string& value,
                 const std::string& key) {
  DType dtype;
  try {
    dtype = parse_dtype(value);
  } catch (const Error& error) {
    throw with_examples(Error(error.code(), key + " = " + error.message()), option, key);
  }
  if (option.choices == nullptr) return;
  for (const std::string& choice : text::split(option.choices, '|'))
    if (parse_dtype(choice) == dtype) return;
  throw with_examples(Error(ErrorCode::bad_choice,
                            key + " = \"" + value + "\", but it must be " + describe_type(option)),
                      option, key);
}

bool means_unset(const OptionValue& value) {
  const auto* s = std::get_if<std::string>(&value);
  return s != nullptr && (*s == "none" || *s == "auto");
}

}  // namespace

std::string to_toml(const OptionValue& value) {
  struct Printer {
    std::string operator()(std::monostate) const { return "\"none\""; }
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(int64_t v) const { return std::to_string(v); }
    std::string operator()(double v) const {
      if (std::isnan(v)) return "nan";
      if (std::isinf(v)) return v > 0 ? "inf" : "-inf";
      char buffer[40];
      auto end = std::to_chars(buffer, buffer + sizeof buffer, v).ptr;
      std::string s(buffer, end);
      // A whole number stays a float in TOML only with a point or an exponent.
      return s;
    }
    std::string operator()(const std::string& v) const { return text::quote(v); }
    std::string operator()(const std::vector<std::string>& v) const {
      return text::list(v, [&](const std::string& s) { return text::quote(s); });
    }
    std::string operator()(const std::vector<double>& v) const {
      return text::list(v, [&](double d) { return (*this)(d); });
    }
    std::string operator()(const StringMap& v) const {
      std::string out = "{";
      for (const auto& [key, item] : v)
        out += (out.size() > 1 ? ", " : "") + text::quote(key) + " = " + text::quote(item);
      return out + "}";
    }
    std::string operator()(const StringTable& v) const {
      return text::list(v, [&](const std::vector<std::string>& row) { return (*this)(row); });
    }
  };
  return std::visit(Printer{}, value);
}

OptionSchema make_schema(std::string table, std::string owner,
                         std::span<const meshwright_option> options) {
  OptionSchema schema{std::move(table), std::move(owner), {}};
  for (size_t i = 0; i < options.size(); ++i) schema.options.push_back(&element(options.data(), i));
  return schema;
}

const meshwright_option* OptionSchema::find(std::string_view name) const {
  for (const meshwright_option* option : options)
    if (option->name == name) return option;
  return nullptr;
}

std::string describe_type(const meshwright_option& option) {
  std::vector<std::string> parts;
  if (accepts(option, MESHWRIGHT_BOOL)) parts.push_back("true or false");
  if (accepts(option, MESHWRIGHT_INT | MESHWRIGHT_NUMBER))
    parts.push_back((accepts(option, MESHWRIGHT_NUMBER) ? "a number" : "an integer") +
                    range_text(option));
  if (accepts(option, MESHWRIGHT_STRING)) {
    if (option.choices != nullptr)
      parts.push_back("one of " + text::join(text::split(option.choices, '|'), ", "));
    else
      parts.push_back(has_flag(option, MESHWRIGHT_DTYPE) ? "a dtype name" : "a string");
  }
  if (accepts(option, MESHWRIGHT_STRING_LIST)) parts.push_back("a list of strings");
  if (accepts(option, MESHWRIGHT_NUMBER_LIST)) parts.push_back("a list of numbers");
  if (accepts(option, MESHWRIGHT_STRING_MAP)) parts.push_back("a table of strings");
  if (accepts(option, MESHWRIGHT_STRING_TABLE)) parts.push_back("a list of lists of strings");
  std::string out = text::join(parts, ", or ");
  if (has_flag(option, MESHWRIGHT_OPTIONAL)) {
    bool automatic =
        option.default_value != nullptr && std::string_view(option.default_value) == "\"auto\"";
    out += automatic ? ", or \"auto\"" : ", or \"none\"";
  }
  return out;
}

OptionValue check_option(const meshwright_option& option, const OptionValue& value,
                         const std::string& key) {
  auto wrong = [&] {
    std::string found = value.index() == 0 ? "nothing" : type_word(value) + (" " + to_toml(value));
    return with_examples(
        Error(ErrorCode::wrong_type, key + " wants " + describe_type(option) + ", found " + found),
        option, key);
  };
  if (value.index() == 0) {
    if (!has_flag(option, MESHWRIGHT_OPTIONAL)) throw wrong();
    return value;
  }
  if (means_unset(value) && has_flag(option, MESHWRIGHT_OPTIONAL)) {
    // A choice of that very name keeps it ("none | full | selective").
    if (option.choices != nullptr)
      for (const std::string& choice : text::split(option.choices, '|'))
        if (choice == std::get<std::string>(value)) return value;
    return std::monostate{};
  }
  switch (value.index()) {
    case 1:
      if (accepts(option, MESHWRIGHT_BOOL)) return value;
      break;
    case 2:
      if (accepts(option, MESHWRIGHT_INT)) {
        check_range(option, static_cast<double>(std::get<int64_t>(value)), key);
        return value;
      }
      if (accepts(option, MESHWRIGHT_NUMBER)) {
        check_range(option, static_cast<double>(std::get<int64_t>(value)), key);
        return static_cast<double>(std::get<int64_t>(value));
      }
      break;
    case 3:
      if (accepts(option, MESHWRIGHT_NUMBER)) {
        check_range(option, std::get<double>(value), key);
        return value;
      }
      break;
    case 4:
      if (accepts(option, MESHWRIGHT_STRING)) {
        const std::string& s = std::get<std::string>(value);
        if (!has_flag(option, MESHWRIGHT_DTYPE)) return check_choice(option, s, key);
        check_dtype(option, s, key);
        return value;
      }
      break;
    case 5: {
      // An empty TOML list has no element type; it arrives as a list of strings.
      const auto& items = std::get<std::vector<std::string>>(value);
      if (accepts(option, MESHWRIGHT_STRING_LIST)) {
        for (const std::string& item : items) check_choice(option, item, key);
        return value;
      }
      if (items.empty() && accepts(option, MESHWRIGHT_NUMBER_LIST)) return std::vector<double>{};
      if (items.empty() && accepts(option, MESHWRIGHT_STRING_TABLE)) return StringTable{};
      break;
    }
    case 6:
      if (accepts(option, MESHWRIGHT_NUMBER_LIST)) {
        const auto& items = std::get<std::vector<double>>(value);
        for (size_t i = 0; i < items.size(); ++i)
          check_range(option, items[i], key, static_cast<ptrdiff_t>(i));
        return value;
      }
      break;
    case 7:
      if (accepts(option, MESHWRIGHT_STRING_MAP)) return value;
      break;
    case 8:
      if (accepts(option, MESHWRIGHT_STRING_TABLE)) return value;
      break;
    default:
      break;
  }
  throw wrong();
}

OptionValue default_of(const meshwright_option& option) {
  if (option.default_value == nullptr) return std::monostate{};
  std::optional<OptionValue> value = text::parse_literal(option.default_value);
  std::string key = option.name;
  if (!value)
    throw Error(ErrorCode::plugin_bad_descriptor,
                "the default of option " + key + " is not a TOML literal: " + option.default_value);
  try {
    return check_option(option, *value, key);
  } catch (const Error& error) {
    throw Error(
        ErrorCode::plugin_bad_descriptor,
        "the default of option " + key + " does not fit its own schema: " + error.message());
  }
}

void check_schema(const OptionSchema& schema) {
  auto bad = [&](const std::string& what) {
    return Error(ErrorCode::plugin_bad_descriptor, "[" + schema.table + "]: " + what);
  };
  std::set<std::string> names;
  for (const meshwright_option* option : schema.options) {
    if (option == nullptr || option->struct_size < kFirstSize<meshwright_option>)
      throw bad("an option struct is too short");
    if (option->name == nullptr || !text::is_identifier(option->name))
      throw bad("an option has no proper name");
    std::string name = option->name;
    constexpr uint32_t all = 2 * MESHWRIGHT_STRING_TABLE - 1;
    if (option->type == 0 || (option->type & ~all) != 0)
      throw bad("option " + name + " has an unknown type");
    if (option->doc == nullptr || *option->doc == '\0') throw bad("option " + name + " has no doc");
    if (!names.insert(name).second) throw bad("option " + name + " stands twice");
    default_of(*option);
  }
}

struct Options::Table {
  struct Slot {
    OptionValue value;
    Origin origin;
    bool given = false;
  };
  const Slot& slot(std::string_view name) const {
    auto it = slots.find(name);
    if (it == slots.end())
      throw Error(ErrorCode::internal, "[" + schema.table + "] has no option " + std::string(name));
    return it->second;
  }

  OptionSchema schema;
  std::map<std::string, Slot, std::less<>> slots;
};

Options::Options() : table_(std::make_unique<Table>()) {}
Options::Options(const Options& other) : table_(std::make_unique<Table>(*other.table_)) {}
// What was moved from stays an empty table, which can be asked.
Options::Options(Options&& other) noexcept
    : table_(std::exchange(other.table_, std::make_unique<Table>())) {}
Options& Options::operator=(const Options& other) {
  *table_ = *other.table_;
  return *this;
}
Options& Options::operator=(Options&& other) noexcept {
  Options moved(std::move(other));
  std::swap(table_, moved.table_);
  return *this;
}
Options::~Options() = default;

Options::Options(const OptionSchema& schema) : Options() {
  table_->schema = schema;
  for (const meshwright_option* option : schema.options)
    table_->slots[option->name].value = default_of(*option);
}

const OptionSchema& Options::schema() const { return table_->schema; }

void Options::set(std::string_view name, const OptionValue& value, Origin origin) {
  const OptionSchema& schema = table_->schema;
  std::string key =
      schema.table.empty() ? std::string(name) : schema.table + "." + std::string(name);
  const meshwright_option* option = schema.find(name);
  if (option == nullptr) {
    std::vector<std::string> names;
    for (const meshwright_option* o : schema.options) names.emplace_back(o->name);
    Error error(ErrorCode::unknown_key, "unknown key " + key);
    error.key(key).at(origin);
    if (std::string near = nearest_name(name, names); !near.empty())
      error.help("did you mean " + near + "?");
    throw error;
  }
  OptionValue checked;
  try {
    checked = check_option(*option, value, key);
  } catch (Error& error) {
    throw error.at(origin);
  }
  table_->slots[std::string(name)] = {std::move(checked), std::move(origin), true};
}

bool Options::is_set(std::string_view name) const { return table_->slot(name).value.index() != 0; }
bool Options::is_given(std::string_view name) const { return table_->slot(name).given; }
const OptionValue& Options::value(std::string_view name) const { return table_->slot(name).value; }
Origin Options::origin(std::string_view name) const { return table_->slot(name).origin; }

Error option_error(const Options& options, std::string_view name, ErrorCode code,
                   std::string message, std::string_view instead) {
  const std::string key = options.schema().table + "." + std::string(name);
  return Error(code, std::move(message))
      .key(key)
      .at(options.origin(name))
      .help("set " + key + " = " + std::string(instead));
}

namespace {
template <class T>
const T& as(const OptionValue& value, std::string_view name) {
  if (const T* v = std::get_if<T>(&value)) return *v;
  throw Error(ErrorCode::internal,
              "option " + std::string(name) + " does not hold the type asked for");
}
}  // namespace

bool Options::get_bool(std::string_view name) const { return as<bool>(value(name), name); }
int64_t Options::get_int(std::string_view name) const { return as<int64_t>(value(name), name); }
double Options::get_number(std::string_view name) const {
  const OptionValue& v = value(name);
  if (const auto* i = std::get_if<int64_t>(&v)) return static_cast<double>(*i);
  return as<double>(v, name);
}
std::string Options::get_string(std::string_view name) const {
  return is_set(name) ? as<std::string>(value(name), name) : std::string();
}
std::vector<std::string> Options::get_strings(std::string_view name) const {
  return is_set(name) ? as<std::vector<std::string>>(value(name), name)
                      : std::vector<std::string>();
}
std::optional<size_t> Options::find_choice(std::string_view name) const {
  if (!is_set(name)) return std::nullopt;
  // set() keeps the choice as the option writes it.
  const char* listed = table_->schema.find(name)->choices;
  const auto choices = text::split(listed == nullptr ? "" : listed, '|');
  const auto at = std::find(choices.begin(), choices.end(), get_string(name));
  if (at != choices.end()) return static_cast<size_t>(at - choices.begin());
  throw Error(ErrorCode::internal, "option " + std::string(name) + " has no choices");
}
std::optional<int64_t> Options::find_int(std::string_view name) const {
  return is_set(name) ? std::optional(as<int64_t>(value(name), name)) : std::nullopt;
}
std::optional<bool> Options::find_bool(std::string_view name) const {
  return is_set(name) ? std::optional(as<bool>(value(name), name)) : std::nullopt;
}
std::optional<DType> Options::find_dtype(std::string_view name) const {
  return is_set(name) ? std::optional(parse_dtype(as<std::string>(value(name), name)))
                      : std::nullopt;
}

}  // namespace meshwright
