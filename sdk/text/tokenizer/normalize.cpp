#include "sdk/text/tokenizer/normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "sdk/text/tokenizer/young.h"

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
