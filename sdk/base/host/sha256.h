// SHA-256 (FIPS 180-4) and HMAC over it (RFC 2104): who knows a job's secret proves it so. LibTorch
// exports neither, and the 80 lines spare every installation a library. Constant expressions, so
// that tests hold the published vectors while they compile; no branch or index depends on the data.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace meshwright::base {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  constexpr Sha256& add(std::string_view bytes) {
    for (char c : bytes) put(static_cast<uint8_t>(c));
    return *this;
  }
  constexpr Sha256& add(const Digest& digest) {
    for (uint8_t byte : digest) put(byte);
    return *this;
  }
  // Once, last.
  constexpr Digest finish() {
    const uint64_t bits = 8 * length_;
    put(0x80);
    while (used_ != 56) put(0);
    for (int shift = 56; shift >= 0; shift -= 8) put(static_cast<uint8_t>(bits >> shift));
    Digest out{};
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
    return out;
  }

 private:
  static constexpr std::array<uint32_t, 64> kRound = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
      0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
      0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
      0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
      0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
      0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
      0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
      0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
      0xc67178f2};

  constexpr void put(uint8_t byte) {
    block_[used_++] = byte;
    ++length_;
    if (used_ < block_.size()) return;
    used_ = 0;
    take_block();
  }

  constexpr void take_block() {
    std::array<uint32_t, 64> w{};
    for (size_t i = 0; i < 16; ++i)
      w[i] = uint32_t{block_[4 * i]} << 24 | uint32_t{block_[4 * i + 1]} << 16 |
             uint32_t{block_[4 * i + 2]} << 8 | uint32_t{block_[4 * i + 3]};
    for (size_t i = 16; i < 64; ++i) {
      const uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (size_t i = 0; i < 64; ++i) {
      const uint32_t one = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                           ((e & f) ^ (~e & g)) + kRound[i] + w[i];
      const uint32_t two =
          (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g;
      g = f;
      f = e;
      e = d + one;
      d = c;
      c = b;
      b = a;
      a = one + two;
    }
    const std::array<uint32_t, 8> more = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < more.size(); ++i) state_[i] += more[i];
  }

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> block_{};
  size_t used_ = 0;
  uint64_t length_ = 0;
};

class Hmac {
 public:
  constexpr explicit Hmac(std::string_view key) {
    std::array<uint8_t, 64> padded{};
    if (key.size() > padded.size()) {
      const Digest digest = Sha256().add(key).finish();
      for (size_t i = 0; i < digest.size(); ++i) padded[i] = digest[i];
    } else {
      for (size_t i = 0; i < key.size(); ++i) padded[i] = static_cast<uint8_t>(key[i]);
    }
    for (uint8_t byte : padded) {
      const char in = static_cast<char>(byte ^ 0x36), out = static_cast<char>(byte ^ 0x5c);
      inner_.add(std::string_view(&in, 1));
      outer_.add(std::string_view(&out, 1));
    }
  }
  constexpr Hmac& add(std::string_view bytes) {
    inner_.add(bytes);
    return *this;
  }
  // Once, last.
  constexpr Digest finish() { return outer_.add(inner_.finish()).finish(); }

 private:
  Sha256 inner_, outer_;
};

inline std::string text_of(const Digest& digest) { return {digest.begin(), digest.end()}; }

// Takes as long wherever the first difference is.
constexpr bool same_secret(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned differences = 0;
  for (size_t i = 0; i < a.size(); ++i)
    differences |=
        static_cast<unsigned char>(a[i]) ^ static_cast<unsigned>(static_cast<unsigned char>(b[i]));
  return differences == 0;
}

}  // namespace meshwright::base
