#include "engine/train/run/rank_files.h"

#include <algorithm>
#include <cstdio>
#include <span>
#include <utility>

#include "engine/checkpoint/checksum.h"
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

}  // namespace meshwright::train
