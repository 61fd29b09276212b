#include "packing.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <utility>

namespace meshwright::jsonl {

namespace {

constexpr uint32_t kNone = UINT32_MAX;

// A set of numbers below a bound, by bits of bits: the least member from a number on takes a few
// words.
class BitSet {
 public:
  explicit BitSet(size_t bound) {
    do {
      bound = (bound + 63) / 64;
      levels_.emplace_back(bound, 0);
    } while (bound > 1);
  }
  void insert(size_t at) {
    for (std::vector<uint64_t>& level : levels_) {
      level[at / 64] |= uint64_t{1} << (at % 64);
      at /= 64;
    }
  }
  void erase(size_t at) {
    for (std::vector<uint64_t>& level : levels_) {
      level[at / 64] &= ~(uint64_t{1} << (at % 64));
      if (level[at / 64] != 0) return;
      at /= 64;
    }
  }
  // kNone: there is none.
  uint32_t least_from(size_t at) const {
    for (size_t level = 0; level < levels_.size(); ++level) {
      const size_t word = at / 64;
      if (word >= levels_[level].size()) return kNone;
      if (const uint64_t rest = levels_[level][word] >> (at % 64); rest != 0) {
        at += static_cast<size_t>(std::countr_zero(rest));
        while (level-- > 0)
          at = at * 64 + static_cast<size_t>(std::countr_zero(levels_[level][at]));
        return static_cast<uint32_t>(at);
      }
      at = word + 1;
    }
    return kNone;
  }

 private:
  std::vector<std::vector<uint64_t>> levels_;  // bits of the numbers, then of words with any, ...
};

// Packs by their room; of those with equal room the first that came is the first taken.
class Rooms {
 public:
  explicit Rooms(uint32_t room)
      : first_(size_t{room} + 1, kNone),
        last_(size_t{room} + 1, kNone),
        filled_(size_t{room} + 1) {}
  void add(uint32_t pack, uint32_t room) {
    if (pack >= next_.size()) next_.resize(size_t{pack} + 1, kNone);
    next_[pack] = kNone;
    if (first_[room] == kNone) {
      first_[room] = pack;
      filled_.insert(room);
    } else {
      next_[last_[room]] = pack;
    }
    last_[room] = pack;
  }
  // The pack and its room; kNone: none has `length` left.
  std::pair<uint32_t, uint32_t> take(uint32_t length) {
    const uint32_t room = filled_.least_from(length);
    if (room == kNone) return {kNone, 0};
    const uint32_t pack = first_[room];
    first_[room] = next_[pack];
    if (first_[room] == kNone) filled_.erase(room);
    return {pack, room};
  }

 private:
  std::vector<uint32_t> first_, last_, next_;
  BitSet filled_;
};

// Documents with the number of their pack, gathered: each pack keeps the order they came in.
Packs gather(std::span<const uint32_t> order, std::span<const uint32_t> pack_of, uint32_t packs) {
  Packs out;
  out.begins.assign(size_t{packs} + 1, 0);
  for (uint32_t pack : pack_of) ++out.begins[size_t{pack} + 1];
  std::partial_sum(out.begins.begin(), out.begins.end(), out.begins.begin());
  std::vector<uint64_t> next(out.begins.begin(), out.begins.end() - 1);
  out.documents.resize(order.size());
  for (size_t i = 0; i < order.size(); ++i) out.documents[next[pack_of[i]]++] = order[i];
  return out;
}

Packs best_fit(std::span<const uint32_t> lengths, uint32_t room, std::span<const uint32_t> given) {
  // By length, longest first, and in the given order within a length. Lengths lie far from each
  // other in that order: each is read once.
  std::vector<uint32_t> in_order(given.size());
  std::vector<uint64_t> begins(size_t{room} + 2, 0);
  for (size_t i = 0; i < given.size(); ++i) {
    in_order[i] = lengths[given[i]];
    ++begins[size_t{room} - in_order[i] + 1];
  }
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  std::vector<uint32_t> order(given.size());
  for (size_t i = 0; i < given.size(); ++i) order[begins[room - in_order[i]]++] = given[i];

  Rooms rooms(room);
  std::vector<uint32_t> pack_of(order.size());
  uint32_t packs = 0, length = room;
  for (size_t i = 0; i < order.size(); ++i) {
    while (i == begins[room - length]) --length;  // begins has become the ends
    auto [pack, left] = rooms.take(length);
    if (pack == kNone) {
      pack = packs++;
      left = room;
    }
    pack_of[i] = pack;
    if (left > length) rooms.add(pack, left - length);
  }
  return gather(order, pack_of, packs);
}

Packs sequential(std::span<const uint32_t> lengths, uint32_t room,
                 std::span<const uint32_t> order) {
  Packs out;
  out.documents.assign(order.begin(), order.end());
  uint32_t left = room;
  for (size_t i = 0; i < order.size(); ++i) {
    const uint32_t length = lengths[order[i]];
    if (i > 0 && length > left) {
      out.begins.push_back(i);
      left = room;
    }
    left -= length;
  }
  if (!order.empty()) out.begins.push_back(order.size());
  return out;
}

using Keyed = std::pair<uint64_t, uint32_t>;
constexpr int kBucketBits = 10;
using Ends = std::array<uint32_t, 1U << kBucketBits>;

// A copy of `from` in `to`, ordered by kBucketBits of its keys from bit `shift` on; where each
// bucket ends.
Ends into_buckets(std::span<const Keyed> from, std::span<Keyed> to, int shift) {
  auto bucket = [shift](const Keyed& one) { return (one.first >> shift) % Ends().size(); };
  Ends at{};
  for (const Keyed& one : from) ++at[bucket(one)];
  std::exclusive_scan(at.begin(), at.end(), at.begin(), 0U);
  for (const Keyed& one : from) to[at[bucket(one)]++] = one;
  return at;
}

template <class F>
void for_buckets(const Ends& ends, const F& f) {
  size_t begin = 0;
  for (size_t end : ends) {
    f(begin, end - begin);
    begin = end;
  }
}

// SplitMix64's finaliser (Steele, Lea and Flood 2014): a bijection that looks random.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

Packs pack(std::span<const uint32_t> lengths, uint32_t room, Packing packing,
           std::span<const uint32_t> order) {
  switch (packing) {
    case Packing::best_fit:
      return best_fit(lengths, room, order);
    case Packing::sequential:
      return sequential(lengths, room, order);
    case Packing::none:
      break;
  }
  Packs out;
  out.documents.assign(order.begin(), order.end());
  for (size_t i = 1; i <= order.size(); ++i) out.begins.push_back(i);
  return out;
}

std::vector<uint32_t> seeded_order(uint32_t documents, uint64_t seed) {
  // By a key of each that looks random. No two keys are equal.
  const uint64_t start = mix(seed + 0x9e3779b97f4a7c15u);
  std::vector<Keyed> keyed(documents), halfway(documents);
  for (uint32_t i = 0; i < documents; ++i)
    keyed[i] = {mix(start + (uint64_t{i} + 1) * 0x9e3779b97f4a7c15u), i};
  // By their first bits into buckets, and each of these by the next bits: what is a few megabytes
  // apart is slow to write to, and few are left to sort.
  constexpr int kFirst = 64 - kBucketBits, kNext = kFirst - kBucketBits;
  for_buckets(into_buckets(keyed, halfway, kFirst), [&](size_t begin, size_t count) {
    const std::span<Keyed> out = std::span(keyed).subspan(begin, count);
    for_buckets(into_buckets(std::span(halfway).subspan(begin, count), out, kNext),
                [&](size_t at, size_t few) {
                  const std::span<Keyed> bucket = out.subspan(at, few);
                  if (few > 1) std::sort(bucket.begin(), bucket.end());
                });
  });
  std::vector<uint32_t> out(documents);
  std::transform(keyed.begin(), keyed.end(), out.begin(),
                 [](const auto& one) { return one.second; });
  return out;
}

}  // namespace meshwright::jsonl
