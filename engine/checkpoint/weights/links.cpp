#include "engine/checkpoint/weights/links.h"

#include <system_error>

namespace meshwright::weights {

namespace fs = std::filesystem;

namespace {

bool lies_in(const fs::path& file, const fs::path& folder) {
  fs::path inside = file.lexically_relative(folder);
  return !inside.empty() && *inside.begin() != "..";
}

}  // namespace

std::optional<fs::path> leads_out(const fs::path& folder, const fs::path& file) {
  std::error_code failed;
  fs::path root = fs::canonical(folder, failed), real = fs::canonical(file, failed);
  if (failed || lies_in(real, root)) return std::nullopt;
  fs::path snapshots = root.parent_path();
  if (snapshots.filename() == "snapshots" &&
      real.parent_path() == snapshots.parent_path() / "blobs")
    return std::nullopt;
  return real;
}

}  // namespace meshwright::weights
