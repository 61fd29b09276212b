#include <filesystem>

#include "engine/data/dataset.h"

namespace meshwright::data {

void check_text_model(const DatasetConfig& config, const std::string& pretrained) {
  std::error_code failed;
  if (config.kind != "text" || pretrained.empty() ||
      !std::filesystem::exists(std::filesystem::path(pretrained) / "tokenizer.json", failed))
    return;
  throw Error(ErrorCode::bad_dataset, config.table + ".kind = \"text\" feeds bytes, but " +
                                          pretrained +
                                          " has a tokenizer, whose ids its model knows")
      .key(config.table + ".kind")
      .help("tokenize the text first: meshwright tokenize '" + config.path + "' --tokenizer " +
            pretrained + " --out data/train.bin")
      .help("then set " + config.table + ".kind = \"tokens\" and " + config.table +
            ".path = \"data/train.bin\"");
}

void look_at_data(const Options& table, int64_t vocab_size, const std::string& pretrained) {
  const DatasetConfig config = dataset_config(table, vocab_size, /*seed=*/0);
  check_text_model(config, pretrained);
  open_dataset(config)->check_tokens(kTokensLookedAt);
}

}  // namespace meshwright::data
