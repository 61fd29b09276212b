// Hashes that tell apart, none of which withstands an attack: FNV-1a, and the finaliser of
// SplitMix64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace meshwright::base {

class Hash {
 public:
  void add(const void* data, size_t size) {
    const auto* at = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < size; ++i) value_ = (value_ ^ at[i]) * 1099511628211u;
  }
  void add(int64_t value) { add(&value, sizeof value); }
  void add(std::string_view text) { add(text.data(), text.size()); }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 14695981039346656037u;
};

inline uint64_t fnv1a(std::string_view text) {
  Hash hash;
  hash.add(text);
  return hash.value();
}

// SplitMix64's finaliser (Steele, Lea and Flood 2014): a bijection that looks random.
inline uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// 16 lower-case hexadecimal digits.
inline std::string to_hex(uint64_t value) {
  std::string out(16, '0');
  for (size_t i = 16; i-- > 0; value >>= 4) out[i] = "0123456789abcdef"[value & 15];
  return out;
}

}  // namespace meshwright::base
