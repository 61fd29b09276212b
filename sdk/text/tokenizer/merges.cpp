#include "sdk/text/tokenizer/merges.h"

#include <algorithm>
#include <array>
#include <bit>
#include <queue>

namespace meshwright::tokenizer {

namespace {

constexpr uint64_t kNoPair = ~uint64_t{0};
// Up to here looking through all pairs for the next merge beats a heap.
constexpr size_t kShort = 48;

// A short piece: the ranks stand in a row beside the ids.
void merge_short(std::vector<uint32_t>& ids, std::vector<size_t>& begins,
                 const MergeTable& merges) {
  constexpr uint32_t kNone = ~uint32_t{0};
  std::array<uint32_t, kShort> ranks{}, becomes{};
  auto look = [&](size_t i) {
    const MergeTable::Merge* merge = i + 1 < ids.size() ? merges.find(ids[i], ids[i + 1]) : nullptr;
    ranks[i] = merge ? merge->rank : kNone;
    if (merge) becomes[i] = merge->id;
  };
  for (size_t i = 0; i < ids.size(); ++i) look(i);
  while (ids.size() > 1) {
    auto end = ranks.begin() + static_cast<std::ptrdiff_t>(ids.size() - 1);
    auto best = static_cast<size_t>(std::min_element(ranks.begin(), end) - ranks.begin());
    if (ranks[best] == kNone) return;
    ids[best] = becomes[best];
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    if (!begins.empty()) begins.erase(begins.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    for (size_t i = best + 1; i < ids.size(); ++i)
      ranks[i] = ranks[i + 1], becomes[i] = becomes[i + 1];
    look(best);
    if (best > 0) look(best - 1);
  }
}

// The same for a long one: a list of symbols and a heap of pairs, of which those that have changed
// meanwhile are skipped.
void merge_long(std::vector<uint32_t>& ids, std::vector<size_t>& begins, const MergeTable& merges) {
  struct Symbol {
    uint32_t id;
    int64_t previous, next;  // -1: none
    bool gone;
  };
  struct Pair {
    uint32_t rank, becomes;
    size_t at;
    bool operator<(const Pair& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  std::vector<Symbol> symbols;
  symbols.reserve(ids.size());
  auto count = static_cast<int64_t>(ids.size());
  for (int64_t i = 0; i < count; ++i)
    symbols.push_back({ids[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1, false});
  auto symbol = [&](int64_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
  std::priority_queue<Pair> queue;
  auto look = [&](int64_t left, int64_t right) {
    if (left < 0 || right < 0) return;
    if (const MergeTable::Merge* merge = merges.find(symbol(left).id, symbol(right).id))
      queue.push({merge->rank, merge->id, static_cast<size_t>(left)});
  };
  for (int64_t i = 0; i + 1 < count; ++i) look(i, i + 1);
  while (!queue.empty()) {
    Pair pair = queue.top();
    queue.pop();
    Symbol& left = symbols[pair.at];
    if (left.gone || left.next < 0) continue;
    Symbol& right = symbol(left.next);
    // What stands there may be another pair by now; the library goes by what it becomes.
    const MergeTable::Merge* merge = merges.find(left.id, right.id);
    if (merge == nullptr || merge->id != pair.becomes) continue;
    left.id = merge->id;
    right.gone = true;
    left.next = right.next;
    auto at = static_cast<int64_t>(pair.at);
    if (left.next >= 0) symbol(left.next).previous = at;
    look(left.previous, at);
    look(at, left.next);
  }
  ids.clear();
  size_t kept = 0;
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (symbols[i].gone) continue;
    ids.push_back(symbols[i].id);
    if (!begins.empty()) begins[kept++] = begins[i];
  }
  begins.resize(kept);
}

}  // namespace

MergeTable::MergeTable(size_t merges)
    : slots_(std::bit_ceil(merges * 2 + 2), Slot{kNoPair, {}}), mask_(slots_.size() - 1) {}

size_t MergeTable::place_of(uint64_t pair) const {
  uint64_t mixed = (pair ^ pair >> 29) * 0x9E3779B97F4A7C15U;
  auto place = static_cast<size_t>(mixed >> 20) & mask_;
  while (slots_[place].pair != kNoPair && slots_[place].pair != pair) place = (place + 1) & mask_;
  return place;
}

void MergeTable::set(uint32_t left, uint32_t right, Merge merge) {
  uint64_t pair = uint64_t{left} << 32 | right;
  slots_[place_of(pair)] = {pair, merge};
}

const MergeTable::Merge* MergeTable::find(uint32_t left, uint32_t right) const {
  const Slot& slot = slots_[place_of(uint64_t{left} << 32 | right)];
  return slot.pair == kNoPair ? nullptr : &slot.merge;
}

void MergeTable::erase_results(const std::vector<bool>& ids) {
  auto erased = [&](const Slot& slot) {
    return slot.pair != kNoPair && slot.merge.id < ids.size() && ids[slot.merge.id];
  };
  if (std::none_of(slots_.begin(), slots_.end(), erased)) return;
  // Anew: a place that falls empty would hide what lies behind it.
  std::vector<Slot> before(slots_.size(), Slot{kNoPair, {}});
  before.swap(slots_);
  for (const Slot& slot : before)
    if (slot.pair != kNoPair && !erased(slot)) slots_[place_of(slot.pair)] = slot;
}

void merge(std::vector<uint32_t>& ids, std::vector<size_t>& begins, const MergeTable& merges) {
  if (ids.size() <= kShort)
    merge_short(ids, begins, merges);
  else
    merge_long(ids, begins, merges);
}

}  // namespace meshwright::tokenizer
