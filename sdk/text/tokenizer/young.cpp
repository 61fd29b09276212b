#define PCRE2_CODE_UNIT_WIDTH 8
#include "sdk/text/tokenizer/young.h"

#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "sdk/base/words.h"
#include "sdk/text/tokenizer/normalize.h"
#include "sdk/text/tokenizer/pattern.h"

namespace meshwright::tokenizer {

namespace {

template <size_t N>
bool among(const CodeRange (&ranges)[N], int32_t code) {
  const CodeRange* found =
      std::lower_bound(std::begin(ranges), std::end(ranges), code,
                       [](const CodeRange& one, int32_t wanted) { return one.last < wanted; });
  return found != std::end(ranges) && found->first <= code;
}

// Most of what a text in these scripts has, all of it old.
bool is_usual(int32_t code) {
  return (code >= 0x3041 && code < 0x3097) || (code >= 0x4E00 && code < 0x9FF0) ||
         (code >= 0xAC00 && code < 0xD7A4);
}

bool is_noncharacter(int32_t code) {
  return (code & 0xFFFE) == 0xFFFE || (code >= 0xFDD0 && code <= 0xFDEF);
}

std::string pcre2_unicode() {
  char version[32] = {};
  pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
  return version;
}

}  // namespace

int64_t young_characters(std::string_view text) {
  static const Pattern unassigned(R"(\p{Cn})");
  std::optional<PatternScratch> scratch;
  int64_t out = 0;
  for (size_t at = 0; at < text.size();) {
    // Below U+0800 there has been nothing new for long.
    if (static_cast<uint8_t>(text[at]) < 0xE0) {
      ++at;
      continue;
    }
    const Character next = character_at(text, at);
    if (!is_usual(next.code) && !is_noncharacter(next.code)) {
      if (utf8proc_category(next.code) == UTF8PROC_CATEGORY_CN) {
        ++out;
      } else if (among(kSince15, next.code)) {
        if (!scratch) scratch.emplace();
        if (unassigned.matches_at(text, at, *scratch)) ++out;
      }
    }
    at += next.bytes;
  }
  return out;
}

std::string tell_young(int64_t characters) {
  return text::counted(characters, "character") +
         (characters == 1 ? " is younger" : " are younger") + " than Unicode " + pcre2_unicode() +
         ", whose tables are read here: around such the tokenizers library may cut a text "
         "otherwise";
}

bool composed_later(int32_t code) {
  return code >= kComposedLater[0].first && !is_usual(code) &&
         (among(kComposedLater, code) || among(kSince15, code));
}

}  // namespace meshwright::tokenizer
