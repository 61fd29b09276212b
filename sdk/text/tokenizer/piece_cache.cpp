#include "sdk/text/tokenizer/piece_cache.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace meshwright::tokenizer::detail {

namespace {

constexpr size_t kPieces = 1 << 14;

}  // namespace

KnownPiece& known_piece(std::string_view piece) {
  thread_local std::vector<KnownPiece> pieces(kPieces);
  return pieces[std::hash<std::string_view>()(piece) % kPieces];
}

void remember(KnownPiece& known, uint64_t serial, std::string_view piece, bool plain,
              const ModelOut& out, size_t before) {
  const size_t count = out.ids.size() - before;
  if (count > KnownPiece::kIds) return;
  known.serial = serial;
  known.plain = plain;
  known.bytes = static_cast<uint8_t>(piece.size());
  known.count = static_cast<uint8_t>(count);
  std::copy(piece.begin(), piece.end(), known.text.begin());
  for (size_t i = 0; i < count; ++i) {
    const ByteRange& range = (*out.ranges)[i];
    known.ids[i] = static_cast<uint32_t>(out.ids[before + i]);
    known.begins[i] = static_cast<uint8_t>(range.begin);
    known.ends[i] = static_cast<uint8_t>(range.end);
  }
}

}  // namespace meshwright::tokenizer::detail
