#include <algorithm>
#include <chrono>
#include <filesystem>

#include "engine/data/dataset.h"
#include "engine/data/sample_buffer.h"

namespace meshwright::data {

namespace {

void look_at_samples(const SampleSource& source, int64_t seq_len) {
  constexpr int64_t kMost = 64;
  constexpr std::chrono::seconds kBudget{1};
  const auto begin = std::chrono::steady_clock::now();
  const int64_t samples = source.samples(), looks = std::min(samples, kMost);
  // The first and the last one, and what lies between them as evenly as it goes.
  const int64_t gaps = std::max<int64_t>(looks - 1, 1), step = (samples - 1) / gaps,
                rest = (samples - 1) % gaps;
  SampleBuffer buffer(source, seq_len);
  for (int64_t i = 0; i < looks; ++i) {
    source.read(step * i + rest * i / gaps, buffer.view());
    if (std::chrono::steady_clock::now() - begin > kBudget) return;
  }
}

}  // namespace

void check_text_model(const DatasetConfig& config, const std::string& pretrained) {
  std::error_code failed;
  if (config.plugin || config.kind != "text" || pretrained.empty() ||
      !std::filesystem::exists(std::filesystem::path(pretrained) / "tokenizer.json", failed))
    return;
  // Rows of JSON are no text: tokenized as they are, the model would learn their braces.
  const bool rows = config.path.ends_with(".jsonl") || config.path.ends_with(".json");
  Error error(ErrorCode::bad_dataset, config.table + ".kind = \"text\" feeds bytes, but " +
                                          pretrained +
                                          " has a tokenizer, whose ids its model knows");
  error.key(config.table + ".kind");
  if (rows) error.help("set " + config.table + ".plugin = \"jsonl\"");
  throw error
      .help((rows ? "or tokenize the \"text\" of each row: meshwright tokenize '"
                  : "tokenize the text first: meshwright tokenize '") +
            config.path + "'" + (rows ? " --documents json" : "") + " --tokenizer " + pretrained +
            " --out data/train.bin")
      .help("then set " + config.table + ".kind = \"tokens\" and " + config.table +
            ".path = \"data/train.bin\"");
}

std::optional<uint64_t> look_at_data(const DatasetConfig& config, const std::string& pretrained,
                                     bool fingerprint) {
  auto of = [&](const SampleSource& source) {
    return fingerprint ? std::optional(fingerprint_of(config, source)) : std::nullopt;
  };
  if (config.plugin) {
    prepare_data(config);
    const std::shared_ptr<const SampleSource> source = open_samples(config);
    look_at_samples(*source, config.seq_len);
    return of(*source);
  }
  check_text_model(config, pretrained);
  const auto dataset = open_dataset(config);
  dataset->check_tokens(kTokensLookedAt);
  return of(*dataset);
}

}  // namespace meshwright::data
