#include "engine/checkpoint/checksum.h"

#include <algorithm>

#include "engine/checkpoint/meta.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace meshwright::checkpoint {

struct BlockChecksums::State {
  XXH3_state_t hash;
  int64_t filled = 0;
};

uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

bool parse_hex(std::string_view text, uint64_t& out) {
  if (text.size() != 16) return false;
  out = 0;
  for (char c : text) {
    int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return false;
    out = out << 4 | static_cast<uint64_t>(digit);
  }
  return true;
}

BlockChecksums::BlockChecksums() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->hash);
}
BlockChecksums::~BlockChecksums() = default;

void BlockChecksums::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    auto part = bytes.first(std::min(bytes.size(), static_cast<size_t>(kBlock - state_->filled)));
    bytes = bytes.subspan(part.size());
    if (state_->filled == 0 && part.size() == static_cast<size_t>(kBlock)) {
      blocks_.push_back(checksum(part));
      continue;
    }
    XXH3_64bits_update(&state_->hash, part.data(), part.size());
    state_->filled += static_cast<int64_t>(part.size());
    if (state_->filled == kBlock) {
      blocks_.push_back(XXH3_64bits_digest(&state_->hash));
      XXH3_64bits_reset(&state_->hash);
      state_->filled = 0;
    }
  }
}

std::vector<uint64_t> BlockChecksums::finish() {
  if (state_->filled > 0) blocks_.push_back(XXH3_64bits_digest(&state_->hash));
  state_->filled = 0;
  XXH3_64bits_reset(&state_->hash);
  return std::move(blocks_);
}

}  // namespace meshwright::checkpoint
