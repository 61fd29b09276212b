// Matrices of layouts take their time: `check` trains a part of each, `check --all` all of it.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <string_view>

namespace meshwright {

inline bool all_layouts() {
  static const bool all = [] {
    const char* value = std::getenv("MESHWRIGHT_ALL_LAYOUTS");  // NOLINT(concurrency-mt-unsafe)
    return value != nullptr && *value == '1';
  }();
  return all;
}

// Whether this is runtime_sockets, in which cases of `runtime` run once more without shared memory
// between their ranks. What they compute was held to the truth there; what is looked for here is
// what holds buffers and waits for messages, of which each way needs a few rows.
inline const bool kOverSockets = [] {
  const char* setting = std::getenv("MESHWRIGHT_SHARED_MEMORY");  // NOLINT(concurrency-mt-unsafe)
  return setting != nullptr && std::string_view(setting) == "0";
}();

// Whether number `turn` of a matrix is trained: every `of`-th, all with MESHWRIGHT_ALL_LAYOUTS=1.
// Where a matrix has rows whose length `of` does not divide, each row meets other columns. The sum
// of the places in two or more lists as `turn`: every pair of places in two of them is met where
// there is a third list of at least `of`; of two lists alone, each place meets every `of`-th of the
// other. Over sockets half of that.
inline bool sampled(size_t turn, size_t of) {
  return all_layouts() || turn % (kOverSockets ? 2 * of : of) == 0;
}

// The same of what is a matrix over sockets alone.
inline bool sampled_over_sockets(size_t turn, size_t of) {
  return all_layouts() || !kOverSockets || turn % of == 0;
}

// How many steps a comparison takes: what is wrong with gradients, their sums or the update shows
// by the second loss; more of them, with MESHWRIGHT_ALL_LAYOUTS=1, show how rounding adds up.
inline int steps_of(int some, int all) { return all_layouts() ? all : some; }

}  // namespace meshwright
