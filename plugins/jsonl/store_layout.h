// How a store's file is divided: what its two writers share.
#pragma once

#include <boost/describe/class.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

#include "token_store.h"

namespace meshwright::jsonl {

// Sections lie at multiples of it.
inline constexpr size_t kStoreAlign = 64;
inline size_t store_aligned(size_t at) {
  return (at + kStoreAlign - 1) / kStoreAlign * kStoreAlign;
}

// A part of the file behind the header.
struct Section {
  uint64_t begin = 0, bytes = 0;
  std::string xxh3;
};
BOOST_DESCRIBE_STRUCT(Section, (), (begin, bytes, xxh3))

struct Sections {
  Section tokens, ids, runs, targets, rows, weights;
};
BOOST_DESCRIBE_STRUCT(Sections, (), (tokens, ids, runs, targets, rows, weights))

// Where the first section begins. The header's length decides it, which tells where sections begin:
// it gets room to spare, for counts of any size.
size_t first_section(const StoreOrigin& origin);
// All that stands before it.
std::string store_front(const StoreOrigin& origin, uint64_t documents, bool wide,
                        const Sections& sections);

}  // namespace meshwright::jsonl
