#include "data_file.h"

#include <filesystem>
#include <system_error>

#include "meshwright/error.h"

namespace meshwright::jsonl {

std::string_view DataFile::text() const {
  if (!mapped) return {};
  const auto bytes = mapped->bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<DataFile> open_files(const std::vector<std::string>& paths) {
  namespace fs = std::filesystem;
  std::vector<DataFile> out;
  uint64_t before = 0;
  for (const std::string& path : paths) {
    DataFile& file = out.emplace_back(DataFile{path, {}, before});
    std::error_code failed;
    if (fs::is_regular_file(path, failed) && fs::file_size(path, failed) == 0) continue;
    file.mapped.emplace(path, ErrorCode::bad_dataset);
    before += static_cast<uint64_t>(file.mapped->size());
  }
  return out;
}

}  // namespace meshwright::jsonl
