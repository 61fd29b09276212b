#include "sdk/text/chat/datum.h"

#include <algorithm>
#include <functional>

namespace meshwright::chat {

void* Arena::refill(size_t bytes) {
  size_t size = std::max(bytes, std::min(size_t{1} << 20, (size_t{64} << 10) << blocks_.size()));
  if (size > budget_.limit - std::min(budget_.limit, budget_.taken)) return nullptr;
  auto block = std::make_unique_for_overwrite<char[]>(size);
  char* out = block.get();
  blocks_.push_back({std::move(block), size});
  budget_.taken += size;
  // The larger rest goes on being used.
  if (size - bytes > left_) {
    at_ = out + bytes;
    left_ = size - bytes;
  }
  return out;
}

void Arena::release(const Mark& mark) {
  for (; blocks_.size() > mark.blocks; blocks_.pop_back()) budget_.taken -= blocks_.back().size;
  at_ = mark.at;
  left_ = mark.left;
}

bool Arena::since(const Mark& mark, const void* of) const {
  auto within = [&](const char* begin, size_t size) {
    return std::less_equal<>()(static_cast<const void*>(begin), of) &&
           std::less<>()(of, static_cast<const void*>(begin + size));
  };
  return within(mark.at, mark.left) ||
         std::any_of(blocks_.begin() + static_cast<std::ptrdiff_t>(mark.blocks), blocks_.end(),
                     [&](const Block& block) { return within(block.bytes.get(), block.size); });
}

void Writer::mark(uint32_t begin, uint32_t end, int32_t message, uint32_t generation) {
  if (begin == end) return;
  if (!runs.empty()) {
    Run& last = runs.back();
    if (last.end == begin && last.message == message && last.generation == generation) {
      last.end = end;
      return;
    }
  }
  runs.push_back({begin, end, message, generation});
}

void Writer::write(const Datum& string, size_t begin, size_t end, uint32_t generation) {
  std::string_view bytes = string.view().substr(begin, end - begin);
  if (!string.mixed) return write(bytes, string.message, generation);
  auto base = static_cast<uint32_t>(text.size());
  text.append(bytes);
  auto first = static_cast<uint32_t>(begin), last = static_cast<uint32_t>(end);
  uint32_t at = first;
  const Run* runs_end = string.parts->runs + string.parts->count;
  const Run* run = std::partition_point(string.parts->runs, runs_end,
                                        [&](const Run& r) { return r.end <= first; });
  for (; run != runs_end && run->begin < last; ++run) {
    uint32_t from = std::max(run->begin, first), to = std::min(run->end, last);
    if (generation != 0) mark(base + at - first, base + from - first, kNoMessage, generation);
    mark(base + from - first, base + to - first, run->message,
         run->generation != 0 ? run->generation : generation);
    at = to;
  }
  if (generation != 0) mark(base + at - first, base + last - first, kNoMessage, generation);
}

Run Origins::at(size_t offset) {
  if (!string_->mixed) return {0, 0, string_->message, 0};
  const Mixed& parts = *string_->parts;
  while (next_ < parts.count && parts.runs[next_].end <= offset) ++next_;
  if (next_ < parts.count && parts.runs[next_].begin <= offset) return parts.runs[next_];
  return {0, 0, kNoMessage, 0};
}

}  // namespace meshwright::chat
