// Vectors that every processor of the architecture has; other architectures split or join them.
#define MESHWRIGHT_ATTENTION_TARGET baseline
#define MESHWRIGHT_ATTENTION_ATTRIBUTES
#define MESHWRIGHT_ATTENTION_BYTES 16
#define MESHWRIGHT_ATTENTION_STRIP 4
#define MESHWRIGHT_ATTENTION_PAIRS 0
#include "attention_kernel_target.h"
