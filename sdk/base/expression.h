// Regular expressions that std::locale::global() does not change. Not public, and all inline.
#pragma once

#include <locale>
#include <regex>
#include <string>

namespace meshwright::text {

inline std::regex expression(const std::string& pattern,
                             std::regex::flag_type how = std::regex_constants::ECMAScript) {
  std::regex out;
  out.imbue(std::locale::classic());
  out.assign(pattern, how);
  return out;
}

}  // namespace meshwright::text
