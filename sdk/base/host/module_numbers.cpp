#include "sdk/base/host/module_numbers.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <locale>
#include <regex>
#include <string>

#include "meshwright/error.h"

namespace meshwright::base {
namespace {

// Of strangers' files: counts could make a small text a large automaton, and the search below takes
// time in proportion to its size.
constexpr size_t kLongest = 512;

// One that std::locale::global() does not change.
std::regex expression(const std::string& pattern, std::regex::flag_type how) {
  std::regex out;
  out.imbue(std::locale::classic());
  out.assign(pattern, how);
  return out;
}

double number_of(const std::string& name, const std::string& text, bool whole) {
  double out = 0;
  const char* end = text.data() + text.size();
  const auto [read, failed] = std::from_chars(text.data(), end, out);
  if (failed == std::errc() && read == end && std::isfinite(out) && out > 0 &&
      (!whole || (out == std::floor(out) && out < 1e9)))
    return out;
  const std::string wanted = whole ? "an integer above 0" : "a number above 0";
  throw Error(ErrorCode::out_of_range,
              to_toml(name) + " = " + to_toml(text) + ", but it must be " + wanted)
      .help("set " + to_toml(name) + " to " + wanted);
}

}  // namespace

std::regex module_expression(const std::string& name, const std::string& before) {
  auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::conflict, to_toml(name) + " cannot be read: " + why)
        .help("name modules in full, or by their last part");
  };
  if (name.size() > kLongest) throw refuse("it is longer than 512 characters");
  if (name.find('{') != std::string::npos) throw refuse("counts in braces are not read here");
  auto how = std::regex_constants::ECMAScript;
#ifdef __GLIBCXX__
  how = how | std::regex_constants::__polynomial;  // no expression takes exponential time
#endif
  try {
    return expression(before + "(?:" + name + ")", how);
  } catch (const std::regex_error& error) {
    throw refuse(error.what());
  }
}

bool is_broken_expression(const std::string& name) {
  if (name.size() > kLongest || name.find('{') != std::string::npos) return false;
  // std::regex takes "(?i)" and "(?P<x>q)" for groups that do not end.
  for (size_t at = name.find("(?"); at != std::string::npos; at = name.find("(?", at + 2))
    if (at + 2 < name.size() && std::string_view(":=!").find(name[at + 2]) == std::string::npos)
      return false;
  try {
    expression("(?:" + name + ")", std::regex_constants::ECMAScript);
  } catch (const std::regex_error& error) {
    using namespace std::regex_constants;
    return error.code() == error_paren || error.code() == error_brack ||
           error.code() == error_range || error.code() == error_badrepeat;
  }
  return false;
}

ModuleNumbers::ModuleNumbers(double others, const StringMap& pattern, bool whole)
    : others_(others) {
  for (const auto& [name, text] : pattern)
    entries_.push_back({name, module_expression(name, "(?:.*\\.)?"), number_of(name, text, whole)});
}

bool ModuleNumbers::Entry::fits(std::string_view module) const {
  return std::regex_match(module.begin(), module.end(), expression);
}

double ModuleNumbers::of(std::string_view module, std::string_view also) const {
  for (const Entry& entry : entries_)
    if (entry.fits(module) || (!also.empty() && entry.fits(also))) return entry.value;
  return others_;
}

std::string ModuleNumbers::without_module(const std::vector<std::string>& modules) const {
  for (const Entry& entry : entries_)
    if (std::none_of(modules.begin(), modules.end(),
                     [&](const std::string& module) { return entry.fits(module); }))
      return entry.name;
  return "";
}

}  // namespace meshwright::base
