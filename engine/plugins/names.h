// How strategy names compare: any letter case, '-' equals '_'.
#pragma once

#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace meshwright::plugins {

inline std::string normal_name(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

inline std::vector<std::string> split_names(std::string_view text, char separator) {
  std::vector<std::string> out;
  while (!text.empty()) {
    size_t end = text.find(separator);
    if (end != 0) out.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return out;
}

}  // namespace meshwright::plugins
