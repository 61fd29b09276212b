// Scores of bfloat16 by dot products of pairs: twice the products a cycle, exact as a float's.
#if defined(__x86_64__)
#define MESHWRIGHT_ATTENTION_TARGET avx512_bf16
#define MESHWRIGHT_ATTENTION_ATTRIBUTES __attribute__((target("arch=x86-64-v4,avx512bf16")))
#define MESHWRIGHT_ATTENTION_BYTES 64
#define MESHWRIGHT_ATTENTION_STRIP 8
#define MESHWRIGHT_ATTENTION_PAIRS 1
#include "attention_kernel_target.h"
#endif
