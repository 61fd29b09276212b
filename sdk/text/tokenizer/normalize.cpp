#define PCRE2_CODE_UNIT_WIDTH 8
#include "sdk/text/tokenizer/normalize.h"

#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <vector>

#include "sdk/base/words.h"
#include "sdk/text/tokenizer/pattern.h"

namespace meshwright::tokenizer {

bool is_space(int32_t code) {
  return (code >= 0x9 && code <= 0xD) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

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

// Which characters are younger than a version of Unicode, from the tokenizers library itself: it
// cuts by the tables of Unicode 16 and composes by those of Unicode 9.
struct CodeRange {
  int32_t first, last;
};

// What combines or composes since a version after 9, up to 14: to the library it does neither.
constexpr CodeRange kComposedLater[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
    {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},
    {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},   {0x10d24, 0x10d27},
    {0x10eab, 0x10eac}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070},
    {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11935, 0x11935},
    {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34},
    {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45},
    {0x11d97, 0x11d97}, {0x16ff0, 0x16ff1}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae},
    {0x1e2ec, 0x1e2ef}};

// What Unicode has since 15.0, up to 16.0.
constexpr CodeRange kSince15[] = {
    {0x897, 0x897},     {0xcf3, 0xcf3},     {0xece, 0xece},     {0x1b4e, 0x1b4f},
    {0x1b7f, 0x1b7f},   {0x1c89, 0x1c8a},   {0x2427, 0x2429},   {0x2ffc, 0x2fff},
    {0x31e4, 0x31e5},   {0x31ef, 0x31ef},   {0xa7cb, 0xa7cd},   {0xa7da, 0xa7dc},
    {0x105c0, 0x105f3}, {0x10d40, 0x10d65}, {0x10d69, 0x10d85}, {0x10d8e, 0x10d8f},
    {0x10ec2, 0x10ec4}, {0x10efc, 0x10eff}, {0x1123f, 0x11241}, {0x11380, 0x11389},
    {0x1138b, 0x1138b}, {0x1138e, 0x1138e}, {0x11390, 0x113b5}, {0x113b7, 0x113c0},
    {0x113c2, 0x113c2}, {0x113c5, 0x113c5}, {0x113c7, 0x113ca}, {0x113cc, 0x113d5},
    {0x113d7, 0x113d8}, {0x113e1, 0x113e2}, {0x116d0, 0x116e3}, {0x11b00, 0x11b09},
    {0x11bc0, 0x11be1}, {0x11bf0, 0x11bf9}, {0x11f00, 0x11f10}, {0x11f12, 0x11f3a},
    {0x11f3e, 0x11f5a}, {0x1342f, 0x1342f}, {0x13439, 0x13455}, {0x13460, 0x143fa},
    {0x16100, 0x16139}, {0x16d40, 0x16d79}, {0x18cff, 0x18cff}, {0x1b132, 0x1b132},
    {0x1b155, 0x1b155}, {0x1cc00, 0x1ccf9}, {0x1cd00, 0x1ceb3}, {0x1d2c0, 0x1d2d3},
    {0x1df25, 0x1df2a}, {0x1e030, 0x1e06d}, {0x1e08f, 0x1e08f}, {0x1e4d0, 0x1e4f9},
    {0x1e5d0, 0x1e5fa}, {0x1e5ff, 0x1e5ff}, {0x1f6dc, 0x1f6dc}, {0x1f774, 0x1f776},
    {0x1f77b, 0x1f77f}, {0x1f7d9, 0x1f7d9}, {0x1f8b2, 0x1f8bb}, {0x1f8c0, 0x1f8c1},
    {0x1fa75, 0x1fa77}, {0x1fa87, 0x1fa89}, {0x1fa8f, 0x1fa8f}, {0x1faad, 0x1faaf},
    {0x1fabb, 0x1fabf}, {0x1fac6, 0x1fac6}, {0x1face, 0x1facf}, {0x1fada, 0x1fadc},
    {0x1fadf, 0x1fadf}, {0x1fae8, 0x1fae9}, {0x1faf7, 0x1faf8}, {0x1fbcb, 0x1fbef},
    {0x2b739, 0x2b739}, {0x2ebf0, 0x2ee5d}, {0x31350, 0x31fff}};

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

bool composed_later(int32_t code) {
  return code >= kComposedLater[0].first && !is_usual(code) &&
         (among(kComposedLater, code) || among(kSince15, code));
}

// Where a character below U+0300 starts that follows one below U+0300, composition has nothing to
// do: none of them combines or is decomposed in NFC. True when all of the text is such characters.
bool plainly_composed(std::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<uint8_t>(c) >= 0xCC; });
}

int combining_class(int32_t code) { return utf8proc_get_property(code)->combining_class; }

// Decomposed characters, put in order and composed.
void put_composed(std::vector<utf8proc_int32_t>& codes, std::string& out) {
  // utf8proc's own ordering takes quadratic time on a long run of marks.
  for (size_t i = 0; i < codes.size();) {
    if (combining_class(codes[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < codes.size() && combining_class(codes[end]) != 0) ++end;
    std::stable_sort(codes.begin() + static_cast<std::ptrdiff_t>(i),
                     codes.begin() + static_cast<std::ptrdiff_t>(end),
                     [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); });
    i = end;
  }
  auto composed =
      utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  for (utf8proc_ssize_t i = 0; i < composed; ++i) append_utf8(out, codes[static_cast<size_t>(i)]);
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

std::string compose(std::string_view text) {
  if (plainly_composed(text)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    Character next = character_at(text, at);
    at += next.bytes;
    if (composed_later(next.code)) {
      put_composed(codes, out);
      codes.clear();
      append_utf8(out, next.code);
      continue;
    }
    utf8proc_int32_t parts[8];  // canonical decompositions have at most 4 characters
    auto count = utf8proc_decompose_char(
        next.code, parts, 8, static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE),
        nullptr);
    if (count < 1 || count > 8) {
      codes.push_back(next.code);
    } else {
      codes.insert(codes.end(), parts, parts + count);
    }
  }
  put_composed(codes, out);
  return out;
}

// Marks join what stands before them, and so do the vowels and final consonants of Hangul and one
// letter of Kirat Rai, the only characters that do and are no marks.
bool starts_anew(int32_t code) {
  if (code < 0x300) return true;
  if ((code >= 0x1160 && code <= 0x11FF) || (code >= 0xD7B0 && code <= 0xD7FF) || code == 0x16D67)
    return false;
  switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return false;
    default:
      return true;
  }
}

std::vector<Recomposed> recomposed(std::string_view text, std::string_view composed) {
  std::vector<Recomposed> out;
  if (text == composed) return out;
  size_t there = 0;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    end += character_at(text, end).bytes;
    for (Character next; end < text.size() && !starts_anew((next = character_at(text, end)).code);)
      end += next.bytes;
    std::string_view one = text.substr(begin, end - begin);
    size_t bytes = one.size();
    if (one.size() > 1) {  // a byte is never changed
      std::string its = compose(one);
      bytes = its.size();
      if (its != one) out.push_back({begin, end, there, there + bytes});
    }
    there += bytes;
  }
  return out;
}

}  // namespace meshwright::tokenizer
