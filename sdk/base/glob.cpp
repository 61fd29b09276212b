#include "meshwright/tp_plan.h"
#include "text.h"

namespace meshwright {
namespace {

// Matches one [..] set at `p` against `c`. Returns the index after the set, or 0 when the bracket
// never closes (then it is a plain '[').
size_t match_set(std::string_view pattern, size_t p, char c, bool& hit) {
  size_t at = p + 1;
  bool negate = at < pattern.size() && pattern[at] == '!';
  if (negate) ++at;
  size_t first = at;
  hit = false;
  for (; at < pattern.size() && (pattern[at] != ']' || at == first); ++at) {
    if (at + 2 < pattern.size() && pattern[at + 1] == '-' && pattern[at + 2] != ']') {
      if (pattern[at] <= c && c <= pattern[at + 2]) hit = true;
      at += 2;
    } else if (pattern[at] == c) {
      hit = true;
    }
  }
  if (at >= pattern.size()) return 0;
  if (negate) hit = !hit;
  return at + 1;
}

std::string_view last_level(std::string_view name) { return name.substr(name.rfind('.') + 1); }

}  // namespace

// Linear in practice: on a mismatch only the last `*` is extended.
bool glob_matches(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
      continue;
    }
    if (p < pattern.size()) {
      bool hit = false;
      size_t next = pattern[p] == '[' ? match_set(pattern, p, text[t], hit) : 0;
      if (next == 0) {
        hit = pattern[p] == '?' || pattern[p] == text[t];
        next = p + 1;
      }
      if (hit) {
        p = next;
        ++t;
        continue;
      }
    }
    if (star == std::string_view::npos) return false;
    p = star + 1;
    t = ++resume;
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool pattern_matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty() || name.empty()) return pattern.empty() && name.empty();
  // The last levels first: names of a model have the first ones in common.
  if (!glob_matches(last_level(pattern), last_level(name))) return false;
  for (;;) {
    size_t pattern_dot = pattern.find('.'), name_dot = name.find('.');
    if (!glob_matches(pattern.substr(0, pattern_dot), name.substr(0, name_dot))) return false;
    if (pattern_dot == std::string_view::npos || name_dot == std::string_view::npos)
      return pattern_dot == name_dot;
    pattern.remove_prefix(pattern_dot + 1);
    name.remove_prefix(name_dot + 1);
  }
}

}  // namespace meshwright
