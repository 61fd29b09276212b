// XXH3-64 checksums (xxhash.com), of single texts and of a file's blocks as it is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/base/files/hash.h"

namespace meshwright::checkpoint {

uint64_t checksum(std::span<const std::byte> bytes);
inline uint64_t checksum(std::string_view text) {
  return checksum(std::as_bytes(std::span(text.data(), text.size())));
}
using base::to_hex;
// False for anything but what to_hex() gives.
bool parse_hex(std::string_view text, uint64_t& out);

// Checksums of the blocks of a stream.
class BlockChecksums {
 public:
  BlockChecksums();
  ~BlockChecksums();
  void add(std::span<const std::byte> bytes);
  // Ends the last block.
  std::vector<uint64_t> finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::vector<uint64_t> blocks_;
};

}  // namespace meshwright::checkpoint
