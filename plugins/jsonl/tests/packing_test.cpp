// Packs hold every document once, and are those of the reference.
#include "plugins/jsonl/packed_source.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace packing_test {

using meshwright::jsonl::Packing;
using meshwright::jsonl::Packs;
using meshwright::jsonl::seeded_order;

std::vector<uint32_t> in_order(size_t documents) {
  std::vector<uint32_t> order(documents);
  std::iota(order.begin(), order.end(), 0U);
  return order;
}

std::vector<std::vector<uint32_t>> listed(const Packs& packs) {
  std::vector<std::vector<uint32_t>> out;
  for (int64_t p = 0; p < packs.count(); ++p)
    out.emplace_back(packs.pack(p).begin(), packs.pack(p).end());
  return out;
}

// The rule, read off its words: looks at every pack for every document.
std::vector<std::vector<uint32_t>> plain_best_fit(const std::vector<uint32_t>& lengths,
                                                  uint32_t room, std::vector<uint32_t> order) {
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return lengths[a] > lengths[b]; });
  struct Open {
    uint32_t room;
    size_t since;  // when it got this room
    std::vector<uint32_t> documents;
  };
  std::vector<Open> packs;
  size_t now = 0;
  for (uint32_t document : order) {
    Open* best = nullptr;
    for (Open& one : packs)
      if (one.room >= lengths[document] && (best == nullptr || one.room < best->room ||
                                            (one.room == best->room && one.since < best->since)))
        best = &one;
    if (best == nullptr) best = &packs.emplace_back(Open{room, 0, {}});
    best->room -= lengths[document];
    best->since = ++now;
    best->documents.push_back(document);
  }
  std::vector<std::vector<uint32_t>> out;
  for (const Open& one : packs) out.push_back(one.documents);
  return out;
}

TEST_CASE("the example of the specification") {
  const std::vector<uint32_t> lengths{5, 2, 3, 1, 7, 8, 4, 4, 2, 6};
  const Packs packs = pack(lengths, 8, Packing::best_fit, in_order(lengths.size()));
  CHECK(listed(packs) ==
        std::vector<std::vector<uint32_t>>{{5}, {4, 3}, {9, 1}, {0, 2}, {6, 7}, {8}});
}

TEST_CASE("best fit is its rule, for many sets") {
  uint64_t state = 7;
  auto next = [&](uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  };
  for (int round = 0; round < 300; ++round) {
    const auto room = static_cast<uint32_t>(1 + next(round % 2 == 0 ? 12 : 300));
    std::vector<uint32_t> lengths(next(200));
    for (uint32_t& length : lengths) length = static_cast<uint32_t>(1 + next(room));
    const std::vector<uint32_t> order =
        seeded_order(static_cast<uint32_t>(lengths.size()), static_cast<uint64_t>(round));
    CAPTURE(round);
    REQUIRE(listed(pack(lengths, room, Packing::best_fit, order)) ==
            plain_best_fit(lengths, room, order));
  }
}

TEST_CASE("every document lies in one pack, and no pack is too full") {
  for (Packing packing : {Packing::none, Packing::sequential, Packing::best_fit}) {
    const uint32_t room = 97;
    std::vector<uint32_t> lengths(5000);
    for (size_t i = 0; i < lengths.size(); ++i)
      lengths[i] = static_cast<uint32_t>(1 + i * i * 31 % room);
    const std::vector<uint32_t> order = seeded_order(5000, 3);
    const Packs packs = pack(lengths, room, packing, order);
    std::vector<int> seen(lengths.size(), 0);
    int64_t tokens = 0;
    for (int64_t p = 0; p < packs.count(); ++p) {
      uint32_t used = 0;
      for (uint32_t document : packs.pack(p)) {
        ++seen[document];
        used += lengths[document];
      }
      CHECK(used >= 1);
      CHECK(used <= room);
      tokens += used;
    }
    CHECK(std::count(seen.begin(), seen.end(), 1) == 5000);
    if (packing == Packing::none) CHECK(packs.count() == 5000);
    if (packing == Packing::sequential) CHECK(packs.documents == order);
    if (packing == Packing::best_fit)
      CHECK(static_cast<double>(tokens) / static_cast<double>(packs.count() * room) > 0.97);
  }
}

TEST_CASE("a pack in order ends where the next document does not fit") {
  const std::vector<uint32_t> lengths{3, 4, 2, 8, 1, 7};
  CHECK(listed(pack(lengths, 8, Packing::sequential, in_order(6))) ==
        std::vector<std::vector<uint32_t>>{{0, 1}, {2}, {3}, {4, 5}});
  CHECK(pack({}, 8, Packing::sequential, {}).count() == 0);
  CHECK(pack({}, 8, Packing::best_fit, {}).count() == 0);
}

TEST_CASE("an order follows from its seed") {
  CHECK(seeded_order(1000, 1) == seeded_order(1000, 1));
  CHECK(seeded_order(1000, 1) != seeded_order(1000, 2));
  CHECK(seeded_order(1000, 1) != in_order(1000));
  std::vector<uint32_t> sorted = seeded_order(1000, 1);
  std::sort(sorted.begin(), sorted.end());
  CHECK(sorted == in_order(1000));
  // Kept in checkpoints by way of the data set's fingerprint: it may never change.
  CHECK(seeded_order(8, 42) == std::vector<uint32_t>{3, 5, 6, 0, 2, 4, 7, 1});
}

}  // namespace packing_test
