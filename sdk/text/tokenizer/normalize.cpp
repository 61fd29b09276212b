#define PCRE2_CODE_UNIT_WIDTH 8
#include "sdk/text/tokenizer/normalize.h"

#include <pcre2.h>
#include <utf8proc.h>

#include <array>
#include <optional>

#include "sdk/base/words.h"
#include "sdk/text/tokenizer/character_classes.h"
#include "sdk/text/tokenizer/pattern.h"

namespace meshwright::tokenizer {

namespace {

struct Alphabet {
  std::array<std::string, 256> letters;
  std::array<int, 324> bytes;  // by code point; -1: no letter

  // Bytes that print in Latin-1 are themselves; the others follow from U+0100 in their order.
  Alphabet() {
    bytes.fill(-1);
    int next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      int code = prints ? byte : next++;
      append_utf8(letters[static_cast<size_t>(byte)], code);
      bytes[static_cast<size_t>(code)] = byte;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet it;
  return it;
}

}  // namespace

std::string_view letter_of(uint8_t byte) { return alphabet().letters[byte]; }

std::string to_letters(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (char byte : bytes) out += letter_of(static_cast<uint8_t>(byte));
  return out;
}

std::optional<std::string> from_letters(std::string_view token) {
  const auto& bytes = alphabet().bytes;
  std::string out;
  for (size_t at = 0; at < token.size();) {
    Character next = character_at(token, at);
    at += next.bytes;
    if (static_cast<size_t>(next.code) >= bytes.size() || bytes[static_cast<size_t>(next.code)] < 0)
      return std::nullopt;
    out.push_back(static_cast<char>(bytes[static_cast<size_t>(next.code)]));
  }
  return out;
}

namespace {

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
      } else if (is_since_15(next.code)) {
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

}  // namespace meshwright::tokenizer
