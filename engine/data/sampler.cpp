#include <bit>

#include "engine/data/dataset.h"
#include "sdk/base/files/hash.h"

namespace meshwright::data {

namespace {

uint64_t mix(uint64_t x) { return base::mix64(x + 0x9e3779b97f4a7c15u); }

}  // namespace

Sampler::Sampler(int64_t samples, bool shuffle, uint64_t seed)
    : samples_(samples), shuffle_(shuffle), seed_(seed) {
  if (samples < 1)
    throw Error(ErrorCode::internal, "a sampler over " + std::to_string(samples) + " samples");
  auto bits =
      static_cast<int>(std::bit_width(static_cast<uint64_t>(samples > 1 ? samples - 1 : 1)));
  half_bits_ = (bits + 1) / 2;
}

// A Feistel network over the next even power of two is a permutation of it; walking on from values
// past the end (less than four steps on average) makes it one of [0, samples).
int64_t Sampler::at(int64_t position) const {
  if (position < 0)
    throw Error(ErrorCode::internal, "there is no position " + std::to_string(position));
  int64_t epoch = position / samples_, place = position % samples_;
  if (!shuffle_) return place;
  uint64_t key = mix(seed_ ^ mix(static_cast<uint64_t>(epoch))),
           mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t x = static_cast<uint64_t>(place);
  do {
    uint64_t left = x >> half_bits_, right = x & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      uint64_t next = left ^ (mix(key ^ mix(right + (round << 56))) & mask);
      left = right;
      right = next;
    }
    x = left << half_bits_ | right;
  } while (x >= static_cast<uint64_t>(samples_));
  return static_cast<int64_t>(x);
}

}  // namespace meshwright::data
