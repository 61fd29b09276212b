// Philox4x32-10 (Salmon et al. 2011): random bits as a function of a counter and a key, so that any
// element can be drawn alone.
#pragma once

#include <array>
#include <cstdint>

namespace meshwright::modules {

using PhiloxBits = std::array<uint32_t, 4>;

constexpr PhiloxBits philox(PhiloxBits c, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round, key0 += 0x9E3779B9U, key1 += 0xBB67AE85U) {
    uint64_t a = uint64_t{0xD2511F53U} * c[0], b = uint64_t{0xCD9E8D57U} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ key0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ key1, static_cast<uint32_t>(a)};
  }
  return c;
}

}  // namespace meshwright::modules
