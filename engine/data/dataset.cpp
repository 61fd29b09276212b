#include "engine/data/dataset.h"

#include <algorithm>

#include "engine/data/token_files.h"
#include "sdk/base/files/hash.h"

namespace meshwright::data {

namespace {

constexpr int64_t kMaxSeqLen = int64_t{1} << 31, kMockSamples = 65536;

// Synthetic tokens with something to learn: each mostly follows from the one before.
class Mock final : public Dataset {
 public:
  explicit Mock(const DatasetConfig& config)
      : vocab_(config.vocab_size > 0 ? config.vocab_size : 256), seed_(config.seed) {
    seq_len_ = config.seq_len;
    tokens_ = seq_len_ * kMockSamples + 1;
  }
  std::string describe() const override {
    return "synthetic, seed " + std::to_string(seed_) + ", vocabulary " + std::to_string(vocab_);
  }
  uint64_t fingerprint() const override {
    base::Hash hash;
    hash.add("mock", 4);
    hash.add(vocab_);
    hash.add(static_cast<int64_t>(seed_));
    return hash.value();
  }

 protected:
  void tokens_at(int64_t begin, int64_t count, int64_t* out) const override {
    for (int64_t i = 0; i < count; ++i) {
      auto place = static_cast<uint64_t>(begin + i);
      uint64_t noise = (place ^ seed_) * 0x9e3779b97f4a7c15u;
      noise ^= noise >> 29;
      noise *= 0xbf58476d1ce4e5b9u;
      out[i] = static_cast<int64_t>((place * 31 + (noise >> 61)) % static_cast<uint64_t>(vocab_));
    }
  }

 private:
  int64_t vocab_;
  uint64_t seed_;
};

std::unique_ptr<Dataset> open_kind(const DatasetConfig& config) {
  if (config.kind == "text") return open_text(config);
  if (config.kind == "tokens") return open_tokens(config);
  if (config.kind == "megatron") return open_megatron(config);
  if (config.kind == "mock") return std::make_unique<Mock>(config);
  throw Error(ErrorCode::bad_choice, config.table + ".kind = \"" + config.kind +
                                         "\", but it must be one of text, tokens, megatron, mock")
      .key(config.table + ".kind")
      .help("set " + config.table + ".kind = \"text\"");
}

// In its order; of mock none.
std::vector<std::string> files_of(const DatasetConfig& config) {
  if (config.kind == "mock") return {};
  return config.kind == "megatron" ? megatron_files(config) : list_files(config);
}

}  // namespace

void Dataset::read(int64_t sample, int64_t* out) const {
  if (sample < 0 || sample >= samples())
    throw Error(ErrorCode::internal, "there is no sample " + std::to_string(sample));
  tokens_at(sample * seq_len_, seq_len_ + 1, out);
}

void Dataset::read(int64_t sample, const SampleView& out) const {
  // One more than the views have: the last position's target.
  thread_local std::vector<int64_t> ids;
  ids.resize(static_cast<size_t>(seq_len_) + 1);
  read(sample, ids.data());
  std::copy_n(ids.begin(), seq_len_, out.tokens.begin());
  std::copy_n(ids.begin() + 1, seq_len_, out.targets.begin());
  if (!document_end_) return;
  int32_t document = 0;
  for (size_t i = 0; i < out.tokens.size(); ++i) {
    out.documents[i] = document;
    if (out.tokens[i] != *document_end_) continue;
    out.targets[i] = kNoTarget;
    ++document;
  }
}

bool names_data(const Options& table) {
  return table.is_set("path") || table.is_set("plugin") ||
         (table.is_given("kind") && table.get_string("kind") == "mock");
}

bool reads_bytes(const Options& table) {
  return !table.is_set("plugin") && table.get_string("kind") == "text";
}

DatasetConfig dataset_config(const Options& table, int64_t vocab_size, uint64_t seed) {
  DatasetConfig config;
  config.table = table.schema().table;
  config.kind = table.get_string("kind");
  config.path = table.get_string("path");
  config.dtype = table.get_string("dtype");
  config.seq_len = table.get_int("seq_len");
  config.vocab_size = vocab_size;
  config.seed = seed;
  config.toml = table.origin("path").file;
  if (table.get_bool("packing")) config.document_end = table.find_int("document_end");
  if (config.path.empty() && config.kind != "mock" && !table.is_set("plugin")) {
    std::string example = config.kind == "text"     ? "data/*.txt"
                          : config.kind == "tokens" ? "data/train.bin"
                                                    : "data/train_text_document";
    throw Error(ErrorCode::missing_key,
                config.table + ".path is needed: where the data of kind \"" + config.kind + "\" is")
        .key(config.table + ".path")
        .help("set " + config.table + ".path = \"" + example + "\"")
        .help("set " + config.table + ".kind = \"mock\" to train on synthetic tokens");
  }
  return config;
}

void check_seq_len(const DatasetConfig& config) {
  if (config.seq_len < 1 || config.seq_len > kMaxSeqLen)
    throw Error(ErrorCode::out_of_range,
                config.table + ".seq_len = " + std::to_string(config.seq_len) +
                    ", but it must be from 1 to " + std::to_string(kMaxSeqLen))
        .key(config.table + ".seq_len")
        .help("set " + config.table + ".seq_len = 512");
}

std::unique_ptr<Dataset> open_dataset(const DatasetConfig& config) {
  check_seq_len(config);
  std::unique_ptr<Dataset> out;
  try {
    out = open_kind(config);
  } catch (Error& error) {
    if (error.key().empty()) error.key(config.table + ".path");
    if (error.helps().empty())
      error.help("fetch, copy or make the file again; one that is still being written is not ready")
          .help("or set " + config.table + ".kind and " + config.table +
                ".dtype to what the file is");
    throw;
  }
  if (out->tokens() - 1 < config.seq_len) {
    Error error(ErrorCode::bad_dataset,
                config.table + ".path = \"" + config.path + "\" holds " +
                    std::to_string(out->tokens()) + (out->tokens() == 1 ? " token" : " tokens") +
                    ", but one sample takes seq_len + 1 = " + std::to_string(config.seq_len + 1));
    error.key(config.table + ".path");
    if (out->tokens() > 1)
      error.help("set " + config.table + ".seq_len = " + std::to_string(out->tokens() - 1));
    throw error.help("or name more data");
  }
  out->separate_documents(config.document_end);
  out->read_from(files_of(config));
  return out;
}

}  // namespace meshwright::data
