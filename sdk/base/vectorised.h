// Loops over raw memory that the compiler turns into the widest vectors of the processor, chosen
// when the library is loaded.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

// Sanitizers cannot run the resolver this early.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MESHWRIGHT_VECTORISED \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))
#else
#define MESHWRIGHT_VECTORISED
#endif

namespace meshwright {

// exp of a float to about 1e-7 relative (Cephes' expf), in a form that compilers turn into vectors:
// 2^n p(r) with x = n ln 2 + r. A file that uses it in loops is compiled with -fno-math-errno
// -fno-trapping-math: otherwise its branches and floor stay scalar. NaN gives NaN; 0 below -87.7,
// where the result would not be a normal number; 88 and more give exp(88).
inline float exponential(float x) {
  x = std::min(std::max(x, -88.0F), 88.0F);
  float n = __builtin_floorf(x * 1.44269504088896341F + 0.5F);
  float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1;
  return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

}  // namespace meshwright
