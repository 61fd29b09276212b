#include "sdk/text/tokenizer/charsmap.h"

#include <cstring>

#include "sdk/text/tokenizer/normalize.h"

namespace meshwright::tokenizer {

// A unit of the array has a label (a byte, or none where bit 31 is set: then it is a value),
// whether a text ends here (bit 8), and how far its children lie away.

Charsmap::Charsmap(std::string_view bytes) {
  uint32_t size = 0;
  if (bytes.size() < 4) throw std::string("has less than 4 bytes");
  std::memcpy(&size, bytes.data(), 4);
  bytes.remove_prefix(4);
  if (size % 4 != 0 || size == 0 || size > bytes.size())
    throw std::string("has an array of " + std::to_string(size) + " bytes in " +
                      std::to_string(bytes.size()));
  units_.resize(size / 4);
  std::memcpy(units_.data(), bytes.data(), size);
  texts_ = bytes.substr(size);
  if (first_invalid(texts_) < texts_.size()) throw std::string("has a text that is not UTF-8");
}

std::optional<std::string_view> Charsmap::find(std::string_view text) const {
  auto children = [](size_t at, uint32_t unit) {
    return at ^ (size_t{unit >> 10U} << ((unit & (1U << 9U)) >> 6U));
  };
  size_t at = children(0, units_[0]);
  for (char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    at ^= byte;
    if (byte == 0 || at >= units_.size()) return std::nullopt;
    const uint32_t unit = units_[at];
    if ((unit & (1U << 31U | 0xFFU)) != byte) return std::nullopt;
    at = children(at, unit);
    if ((unit >> 8U & 1U) == 0) continue;
    if (at >= units_.size()) return std::nullopt;
    const size_t begin = units_[at] & ~(1U << 31U);
    // Within a character nothing begins.
    if (begin >= texts_.size() || (static_cast<uint8_t>(texts_[begin]) & 0xC0) == 0x80)
      return std::string_view();
    return std::string_view(texts_).substr(begin, texts_.find('\0', begin) - begin);
  }
  return std::nullopt;
}

namespace {

constexpr std::string_view kBase64 =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t three = 0;
    for (size_t i = 0; i < 3; ++i)
      three = three << 8U | (at + i < bytes.size() ? static_cast<uint8_t>(bytes[at + i]) : 0U);
    for (size_t i = 0; i < 4; ++i)
      out += at + i <= bytes.size() ? kBase64[three >> (18 - 6 * i) & 63U] : '=';
  }
  return out;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  for (int padding = 0; padding < 2 && text.ends_with('='); ++padding) text.remove_suffix(1);
  std::string out;
  out.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  size_t count = 0;
  for (char c : text) {
    const size_t value = kBase64.find(c);
    if (value == std::string_view::npos) return std::nullopt;
    bits = bits << 6U | static_cast<uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out.push_back(static_cast<char>(bits >> count & 0xFFU));
  }
  return out;
}

}  // namespace meshwright::tokenizer
