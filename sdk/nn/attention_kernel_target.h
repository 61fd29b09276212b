// The attention kernel for one target, whose source defines
//   MESHWRIGHT_ATTENTION_TARGET      its namespace
//   MESHWRIGHT_ATTENTION_ATTRIBUTES  of its functions
//   MESHWRIGHT_ATTENTION_BYTES       of a vector
//   MESHWRIGHT_ATTENTION_STRIP       rows of a product that the registers hold
//   MESHWRIGHT_ATTENTION_PAIRS       1: bfloat16 only, with AVX-512's dot product of pairs
// This header undefines them at its end: sources are joined.
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#if MESHWRIGHT_ATTENTION_PAIRS
#include <immintrin.h>
#endif

#include "attention_kernel_blocks.h"
#include "attention_kernel_targets.h"

#if defined(__clang__)
#define ATTENTION_KERNEL MESHWRIGHT_ATTENTION_ATTRIBUTES
#else
#define ATTENTION_KERNEL MESHWRIGHT_ATTENTION_ATTRIBUTES __attribute__((optimize("O3")))
#endif
#define ATTENTION_KERNEL_INLINE ATTENTION_KERNEL __attribute__((always_inline)) inline

namespace meshwright::attention::MESHWRIGHT_ATTENTION_TARGET {
namespace {

// In this order: each uses those before it.
#include "attention_kernel_lanes.h"

#include "attention_kernel_softmax.h"

#include "attention_kernel_passes.h"

}  // namespace

template <class T>
void forward(const AttentionShape& shape, std::span<const QueryRun<T>> queries,
             std::span<const KeyRun<T>> keys) {
  thread_local Forward<T> kept;
  kept.run(shape, queries, keys);
}
template <class T>
void backward(const AttentionShape& shape, std::span<const QueryRun<T>> queries,
              std::span<const KeyRun<T>> keys) {
  thread_local Backward<T> kept;
  kept.run(shape, queries, keys);
}

#define MESHWRIGHT_ATTENTION_INSTANCE(T)                                         \
  template void forward<T>(const AttentionShape&, std::span<const QueryRun<T>>,  \
                           std::span<const KeyRun<T>>);                          \
  template void backward<T>(const AttentionShape&, std::span<const QueryRun<T>>, \
                            std::span<const KeyRun<T>>);
#if !MESHWRIGHT_ATTENTION_PAIRS
MESHWRIGHT_ATTENTION_INSTANCE(float)
MESHWRIGHT_ATTENTION_INSTANCE(double)
#endif
MESHWRIGHT_ATTENTION_INSTANCE(c10::BFloat16)

}  // namespace meshwright::attention::MESHWRIGHT_ATTENTION_TARGET

#undef MESHWRIGHT_ATTENTION_INSTANCE
#undef ATTENTION_KERNEL_INLINE
#undef ATTENTION_KERNEL
#undef MESHWRIGHT_ATTENTION_TARGET
#undef MESHWRIGHT_ATTENTION_ATTRIBUTES
#undef MESHWRIGHT_ATTENTION_BYTES
#undef MESHWRIGHT_ATTENTION_STRIP
#undef MESHWRIGHT_ATTENTION_PAIRS
