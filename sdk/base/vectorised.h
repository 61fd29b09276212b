// Loops over raw memory that the compiler turns into the widest vectors of the processor, chosen
// when the library is loaded.
#pragma once

// Sanitizers cannot run the resolver this early.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MESHWRIGHT_VECTORISED \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))
#else
#define MESHWRIGHT_VECTORISED
#endif
