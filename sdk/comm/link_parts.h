// How what goes over several connections between two ranks is cut.
#pragma once

#include <algorithm>
#include <cstdint>

namespace meshwright::detail {

// So many bytes in parts of nearly one size, as many as there are connections at most. Both ends of
// a message cut alike, whatever dtype each sees: whole grains, which split no element.
struct LinkParts {
  static constexpr int64_t kLeastBytes = int64_t{64}
                                         << 10;  // below that a part is not worth a turn
  static constexpr int64_t kGrain = 64;
  int64_t bytes, number;
  LinkParts(int64_t all, int64_t connections)
      : bytes(all), number(std::clamp<int64_t>(all / kLeastBytes, 1, connections)) {}
  int64_t begin(int64_t part) const {
    return part == number ? bytes : bytes * part / number / kGrain * kGrain;
  }
  int64_t size(int64_t part) const { return begin(part + 1) - begin(part); }
};

}  // namespace meshwright::detail
