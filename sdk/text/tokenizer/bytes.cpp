#include "sdk/text/tokenizer/bytes.h"

#include <array>

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

}  // namespace meshwright::tokenizer
