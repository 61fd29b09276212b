#include "sdk/base/files/utf8.h"

namespace meshwright::base {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Bytes of the character that starts so; 0 when none does.
size_t length_of(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// Whether `next` may stand at place `index` (from 1) after `lead`: no overlong forms, no
// surrogates, nothing above U+10FFFF.
bool goes_on(uint8_t lead, size_t index, uint8_t next) {
  uint8_t low = 0x80, high = 0xBF;
  if (index == 1) {
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  }
  return next >= low && next <= high;
}

}  // namespace

size_t first_invalid(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    auto lead = static_cast<uint8_t>(text[at]);
    size_t length = length_of(lead);
    if (length == 0 || length > text.size() - at) return at;
    for (size_t i = 1; i < length; ++i)
      if (!goes_on(lead, i, static_cast<uint8_t>(text[at + i]))) return at;
    at += length;
  }
  return at;
}

Character character_at(std::string_view text, size_t at) {
  auto byte = [&](size_t i) {
    return at + i < text.size() ? static_cast<uint8_t>(text[at + i]) : uint8_t{0};
  };
  size_t length = length_of(byte(0));
  switch (length) {
    case 2:
      return {(byte(0) & 0x1F) << 6 | (byte(1) & 0x3F), 2};
    case 3:
      return {(byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
    case 4:
      return {(byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 |
                  (byte(3) & 0x3F),
              4};
    default:
      return {byte(0), 1};
  }
}

void append_utf8(std::string& out, int32_t code) {
  auto put = [&](int32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

std::string Utf8Stream::add(std::string_view bytes) {
  std::string out;
  for (char c : bytes) {
    auto byte = static_cast<uint8_t>(c);
    if (!waiting_.empty()) {
      auto lead = static_cast<uint8_t>(waiting_[0]);
      if (goes_on(lead, waiting_.size(), byte)) {
        waiting_.push_back(c);
        if (waiting_.size() == length_of(lead)) {
          out += waiting_;
          waiting_.clear();
        }
        continue;
      }
      out += kReplacement;
      waiting_.clear();
    }
    switch (length_of(byte)) {
      case 0:
        out += kReplacement;
        break;
      case 1:
        out.push_back(c);
        break;
      default:
        waiting_.push_back(c);
    }
  }
  return out;
}

std::string Utf8Stream::finish() {
  std::string out(waiting_.empty() ? "" : kReplacement);
  waiting_.clear();
  return out;
}

}  // namespace meshwright::base
