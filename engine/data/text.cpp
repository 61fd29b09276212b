#include "engine/data/token_files.h"
#include "sdk/base/files/list_files.h"

namespace meshwright::data {

std::vector<std::string> list_files(const DatasetConfig& config) {
  return base::list_files(config.path, config.table + ".path", config.toml);
}

std::unique_ptr<Dataset> open_text(const DatasetConfig& config) {
  auto out = std::make_unique<TokenFiles>(config, TokenType::uint8);
  for (const std::string& path : list_files(config)) {
    base::MappedFile file(path, ErrorCode::bad_dataset);
    refuse_numpy(file, config);
    int64_t size = file.size();
    out->add(std::move(file), 0, size);
  }
  return out;
}

}  // namespace meshwright::data
