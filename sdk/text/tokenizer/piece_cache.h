// What pieces became: most words of a text have been there before. One per thread, of a fixed size.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "sdk/text/tokenizer/model.h"

namespace meshwright::tokenizer {

// Encodes `piece` by `encode`, unless it is remembered for the model of that serial number. `plain`
// tells pieces of one text apart that may become different ids.
template <class Encode>
void encode_remembered(uint64_t serial, std::string_view piece, bool plain, ModelOut out,
                       const Encode& encode);

namespace detail {

struct KnownPiece {
  static constexpr size_t kBytes = 30, kIds = 8;
  uint64_t serial = 0;
  uint8_t bytes = 0, count = 0;
  bool plain = false;
  std::array<char, kBytes> text{};
  std::array<uint32_t, kIds> ids{};
  std::array<uint8_t, kIds> begins{}, ends{};
};

// By the hash of its text; another one of the same place takes it.
KnownPiece& known_piece(std::string_view piece);
// The ids and ranges that came since `before` of them stood there.
void remember(KnownPiece& known, uint64_t serial, std::string_view piece, bool plain,
              const ModelOut& out, size_t before);

}  // namespace detail

template <class Encode>
void encode_remembered(uint64_t serial, std::string_view piece, bool plain, ModelOut out,
                       const Encode& encode) {
  if (piece.size() > detail::KnownPiece::kBytes) return encode(out);
  detail::KnownPiece& known = detail::known_piece(piece);
  if (known.serial == serial && known.plain == plain &&
      std::string_view(known.text.data(), known.bytes) == piece) {
    for (size_t i = 0; i < known.count; ++i) out.put(known.ids[i], known.begins[i], known.ends[i]);
    return;
  }
  // With ranges, which cost little, so that who asks for them finds them.
  const size_t before = out.ids.size();
  static thread_local std::vector<ByteRange> ranges;
  ranges.clear();
  ModelOut with_ranges{out.ids, &ranges};
  encode(with_ranges);
  detail::remember(known, serial, piece, plain, with_ranges, before);
  if (out.ranges != nullptr) out.ranges->insert(out.ranges->end(), ranges.begin(), ranges.end());
}

}  // namespace meshwright::tokenizer
