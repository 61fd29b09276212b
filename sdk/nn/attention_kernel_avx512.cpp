#if defined(__x86_64__)
#define MESHWRIGHT_ATTENTION_TARGET avx512
#define MESHWRIGHT_ATTENTION_ATTRIBUTES __attribute__((target("arch=x86-64-v4")))
#define MESHWRIGHT_ATTENTION_BYTES 64
#define MESHWRIGHT_ATTENTION_STRIP 8
#define MESHWRIGHT_ATTENTION_PAIRS 0
#include "attention_kernel_target.h"
#endif
