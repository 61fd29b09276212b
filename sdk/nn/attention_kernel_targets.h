// The attention kernel by target; attention_kernel.cpp chooses.
#pragma once

#include <span>

#include "attention_kernel.h"

namespace meshwright::attention {

#define MESHWRIGHT_ATTENTION_DECLARE(target)                                                      \
  namespace target {                                                                              \
  template <class T>                                                                              \
  void forward(const AttentionShape&, std::span<const QueryRun<T>>, std::span<const KeyRun<T>>);  \
  template <class T>                                                                              \
  void backward(const AttentionShape&, std::span<const QueryRun<T>>, std::span<const KeyRun<T>>); \
  }
MESHWRIGHT_ATTENTION_DECLARE(baseline)
MESHWRIGHT_ATTENTION_DECLARE(avx2)
MESHWRIGHT_ATTENTION_DECLARE(avx512)
MESHWRIGHT_ATTENTION_DECLARE(avx512_bf16)  // of c10::BFloat16 alone
#undef MESHWRIGHT_ATTENTION_DECLARE

}  // namespace meshwright::attention
