// Documents put together into samples of one length.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace meshwright::jsonl {

enum class Packing : uint8_t {
  none,        // a document a sample
  sequential,  // in order; a new pack when the next document does not fit
  best_fit,    // "bfd": longest first, each into the pack with the least room that suffices
};

// Documents of pack p are documents[begins[p] .. begins[p + 1]), in the order they lie in it.
struct Packs {
  std::vector<uint32_t> documents;
  std::vector<uint64_t> begins{0};
  int64_t count() const { return static_cast<int64_t>(begins.size()) - 1; }
  std::span<const uint32_t> pack(int64_t p) const {
    const auto at = static_cast<size_t>(p);
    return std::span(documents).subspan(begins[at], begins[at + 1] - begins[at]);
  }
};

// Every document once. `lengths` are 1 .. room; `order` is the order of documents (see
// seeded_order), and what decides between documents of one length. best_fit is best-fit-decreasing:
// of packs with equal room, the one that has had it longest is filled. About n log n, and 20 bytes
// a document.
Packs pack(std::span<const uint32_t> lengths, uint32_t room, Packing packing,
           std::span<const uint32_t> order);

// 0 .. documents - 1, in an order that follows from the seed alone, on every machine.
std::vector<uint32_t> seeded_order(uint32_t documents, uint64_t seed);

}  // namespace meshwright::jsonl
