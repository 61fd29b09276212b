#if defined(__x86_64__)
#define MESHWRIGHT_ATTENTION_TARGET avx2
#define MESHWRIGHT_ATTENTION_ATTRIBUTES __attribute__((target("arch=x86-64-v3")))
#define MESHWRIGHT_ATTENTION_BYTES 32
#define MESHWRIGHT_ATTENTION_STRIP 6
#define MESHWRIGHT_ATTENTION_PAIRS 0
#include "attention_kernel_target.h"
#endif
