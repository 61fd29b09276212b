// Matrices of layouts take their time: `check` trains a part of each, `check --all` all of it.
#pragma once

#include <cstddef>
#include <cstdlib>

namespace meshwright {

// Whether number `turn` of a matrix is trained: every `of`-th, all with MESHWRIGHT_ALL_LAYOUTS=1.
// Where a matrix has rows whose length `of` does not divide, each row meets other columns.
inline bool sampled(size_t turn, size_t of) {
  static const bool all = [] {
    const char* value = std::getenv("MESHWRIGHT_ALL_LAYOUTS");  // NOLINT(concurrency-mt-unsafe)
    return value != nullptr && *value == '1';
  }();
  return all || turn % of == 0;
}

}  // namespace meshwright
