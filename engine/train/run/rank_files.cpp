#include "engine/train/run/rank_files.h"

#include <algorithm>
#include <cstdio>
#include <span>
#include <utility>

#include "engine/checkpoint/checksum.h"
#include "engine/launch/rendezvous/separators.h"
#include "meshwright/error.h"
#include "sdk/base/files/durable.h"

namespace meshwright::train {

namespace fs = std::filesystem;

std::string rank_file_name(const char* kind, int64_t rank, int64_t world) {
  char text[80];
  std::snprintf(text, sizeof text, "%s-%05lld-of-%05lld.safetensors", kind,
                static_cast<long long>(rank) + 1, static_cast<long long>(world));
  return text;
}

checkpoint::FileRecord write_rank_file(const RankFile& file, HostReads& values,
                                       const fs::path& folder, const std::string& name) {
  checkpoint::BlockChecksums sums;
  std::vector<weights::TensorSpec> specs;
  for (const FileEntry& entry : file.entries) specs.push_back(entry.spec);
  weights::SafetensorsWriter writer(folder / name, std::move(specs), {{"format", "pt"}},
                                    [&](auto bytes) { sums.add(bytes); });
  for (size_t i = 0; i < file.entries.size(); ++i) {
    // In pieces that are still in the cache when they are written after their checksum.
    constexpr size_t kPiece = 1 << 20;
    values.next([&](std::span<const std::byte> rest) {
      for (; !rest.empty(); rest = rest.subspan(std::min(kPiece, rest.size())))
        writer.append(i, rest.first(std::min(kPiece, rest.size())));
    });
  }
  writer.finish();
  return {name, writer.size(), sums.finish()};
}

// A record per file: "bytes hex... name". The names of carried files may hold blanks, so they come
// last.
std::string encode(const std::vector<checkpoint::FileRecord>& files) {
  std::string out;
  for (const checkpoint::FileRecord& file : files) {
    out += std::to_string(file.bytes) + " ";
    for (uint64_t block : file.blocks) out += checkpoint::to_hex(block);
    out += " " + file.name + rendezvous::kRecordSeparator;
  }
  return out;
}

std::vector<checkpoint::FileRecord> decode_files(const std::string& text) {
  std::vector<checkpoint::FileRecord> out;
  for (size_t at = 0, end; (end = text.find(rendezvous::kRecordSeparator, at)) != std::string::npos;
       at = end + 1) {
    std::string line = text.substr(at, end - at);
    size_t first = line.find(' '), second = line.find(' ', first + 1);
    checkpoint::FileRecord file{line.substr(second + 1), std::stoll(line), {}};
    for (size_t digit = first + 1; digit < second; digit += 16) {
      uint64_t block = 0;
      checkpoint::parse_hex(std::string_view(line).substr(digit, 16), block);
      file.blocks.push_back(block);
    }
    out.push_back(std::move(file));
  }
  return out;
}

}  // namespace meshwright::train
