#include "sdk/text/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "sdk/text/tokenizer/normalize.h"

namespace meshwright::tokenizer {

namespace {

constexpr uint64_t kNoPair = ~uint64_t{0};
// Up to here looking through all pairs for the next merge beats a heap.
constexpr size_t kShort = 48;

// Neighbours by rank, the leftmost of a rank first. A short piece: the ranks stand in a row beside
// the ids. `begins`, one of each id or none at all, stay beside them.
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
    uint32_t rank, left, right;
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
      queue.push({merge->rank, symbol(left).id, symbol(right).id, static_cast<size_t>(left)});
  };
  for (int64_t i = 0; i + 1 < count; ++i) look(i, i + 1);
  while (!queue.empty()) {
    Pair pair = queue.top();
    queue.pop();
    Symbol& left = symbols[pair.at];
    if (left.gone || left.next < 0 || left.id != pair.left || symbol(left.next).id != pair.right)
      continue;
    Symbol& right = symbol(left.next);
    left.id = merges.find(pair.left, pair.right)->id;
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

void Vocabulary::reserve(size_t tokens, size_t bytes) {
  text_.reserve(bytes);
  entries_.reserve(tokens);
}

void Vocabulary::add(std::string_view token, uint32_t id) {
  entries_.push_back({id, static_cast<uint32_t>(token.size()), text_.size()});
  text_ += token;
}

std::optional<std::pair<std::string, std::string>> Vocabulary::seal() {
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.id < b.id; });
  auto same = std::adjacent_find(entries_.begin(), entries_.end(),
                                 [](const Entry& a, const Entry& b) { return a.id == b.id; });
  if (same != entries_.end())
    return std::pair(std::string(text_of(*same)), std::string(text_of(*(same + 1))));
  ids_.reserve(entries_.size());
  for (const Entry& entry : entries_) ids_.emplace(text_of(entry), entry.id);
  return std::nullopt;
}

std::vector<std::string_view> Vocabulary::tokens() const {
  std::vector<std::string_view> out;
  out.reserve(entries_.size());
  for (const Entry& entry : entries_) out.push_back(text_of(entry));
  return out;
}

std::optional<uint32_t> Vocabulary::find(std::string_view token) const {
  auto it = ids_.find(token);
  return it == ids_.end() ? std::nullopt : std::optional(it->second);
}

std::optional<std::string_view> Vocabulary::token_of(uint32_t id) const {
  if (id < entries_.size() && entries_[id].id == id) return text_of(entries_[id]);
  auto it = std::lower_bound(entries_.begin(), entries_.end(), id,
                             [](const Entry& entry, uint32_t wanted) { return entry.id < wanted; });
  return it == entries_.end() || it->id != id ? std::nullopt : std::optional(text_of(*it));
}

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

void Bpe::keep_out(const std::vector<uint32_t>& ids) {
  for (uint32_t id : ids) {
    if (!vocabulary.token_of(id)) continue;
    if (id >= kept_out_.size()) kept_out_.resize(size_t{id} + 1, false);
    kept_out_[id] = true;
  }
  if (!kept_out_.empty()) merges.erase_results(kept_out_);
}

void Bpe::encode(std::string_view piece, std::vector<int64_t>& out,
                 std::vector<size_t>* begins) const {
  if (ignore_merges) {
    auto whole = vocabulary.find(to_letters(piece));
    if (whole && !(*whole < kept_out_.size() && kept_out_[*whole])) {
      out.push_back(*whole);
      if (begins) begins->push_back(0);
      return;
    }
  }
  std::vector<uint32_t> ids;
  std::vector<size_t> places;  // empty where nobody asks
  ids.reserve(piece.size());
  if (begins) places.reserve(piece.size());
  bool after_unknown = false;
  for (size_t i = 0; i < piece.size(); ++i) {
    std::optional<uint32_t> id = byte_ids[static_cast<uint8_t>(piece[i])];
    bool lacking = !id;
    if (lacking) id = unknown;
    if (id && !(lacking && after_unknown && fuse_unknown)) {
      ids.push_back(*id);
      if (begins) places.push_back(i);
    }
    after_unknown = lacking;
  }
  if (ids.size() <= kShort) {
    merge_short(ids, places, merges);
  } else {
    merge_long(ids, places, merges);
  }
  out.insert(out.end(), ids.begin(), ids.end());
  if (begins) begins->insert(begins->end(), places.begin(), places.end());
}

}  // namespace meshwright::tokenizer
