#include "engine/data/dataset.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/config/config.h"
#include "engine/data/mix.h"
#include "engine/data/token_files.h"
#include "sdk/base/files/hash.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"
#include "sdk/text/tokenizer/folder.h"

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

namespace {

std::string with_other(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

// The same error in which keys that begin so begin otherwise.
Error renamed(const Error& error, const std::string& from, const std::string& to) {
  Error out(error.code(), with_other(error.message(), from, to));
  const std::vector<std::string> keys = error.keys();
  for (size_t i = 0; i < keys.size(); ++i)
    i == 0 ? out.key(with_other(keys[i], from, to)) : out.about(with_other(keys[i], from, to));
  out.at(error.origin());
  for (const std::string& help : error.helps()) out.help(with_other(help, from, to));
  for (const std::string& note : error.notes()) out.note(note);
  return out;
}

}  // namespace

Error named(Error error, const DatasetConfig& config) {
  if (config.name.empty()) return error;
  if (config.plugin) {  // whose options stand in a table for all sources, or in the source's own
    const Options& options = config.plugin->options;
    const std::string table = options.schema().table + ".",
                      own = config.table + table.substr(options.schema().table.rfind('.'));
    error = renamed(error, own, table);
    if (const std::string key = error.key(); key.starts_with(table)) {
      const std::string option =
          key.substr(table.size(), key.find('.', table.size()) - table.size());
      if (error.origin().source == Origin::Source::builtin &&
          options.schema().find(option) != nullptr && options.is_given(option))
        error.at(options.origin(option));
      if (own != table)
        error.help("to say it to this source alone, write [" + own.substr(0, own.size() - 1) +
                   "] below it");
    }
  }
  if (error.origin().source == Origin::Source::builtin) error.at(config.place);
  return error.note("of [[" + config.table + "]] " + to_toml(config.name));
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
  config.shuffle = table.get_bool("shuffle");
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

namespace {

uint64_t mix(uint64_t x) { return base::mix64(x + 0x9e3779b97f4a7c15u); }

}  // namespace

Sampler::Sampler(int64_t samples, bool shuffle, uint64_t seed)
    : samples_(samples), shuffle_(shuffle), seed_(seed) {
  if (samples < 1)
    throw Error(ErrorCode::internal, "a sampler over " + std::to_string(samples) + " samples");
  auto bits =
      static_cast<int>(std::bit_width(static_cast<uint64_t>(samples > 1 ? samples - 1 : 1)));
  half_bits_ = (bits + 1) / 2;
}

// A Feistel network over the next even power of two is a permutation of it; walking on from values
// past the end (less than four steps on average) makes it one of [0, samples).
int64_t Sampler::at(int64_t position) const {
  if (position < 0)
    throw Error(ErrorCode::internal, "there is no position " + std::to_string(position));
  int64_t epoch = position / samples_, place = position % samples_;
  if (!shuffle_) return place;
  uint64_t key = mix(seed_ ^ mix(static_cast<uint64_t>(epoch))),
           mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t x = static_cast<uint64_t>(place);
  do {
    uint64_t left = x >> half_bits_, right = x & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      uint64_t next = left ^ (mix(key ^ mix(right + (round << 56))) & mask);
      left = right;
      right = next;
    }
    x = left << half_bits_ | right;
  } while (x >= static_cast<uint64_t>(samples_));
  return static_cast<int64_t>(x);
}

namespace {

constexpr int64_t kUnwritten = std::numeric_limits<int64_t>::min();
constexpr int32_t kNoDocument = std::numeric_limits<int32_t>::min();

class CheckedSource final : public SampleSource {
 public:
  CheckedSource(const DatasetConfig& config, std::unique_ptr<SampleSource> source)
      : key_(config.key()),
        plugin_(config.plugin->name),
        vocab_(config.vocab_size > 0 ? config.vocab_size : std::numeric_limits<int64_t>::max()),
        source_(std::move(source)),
        documents_(source_->has_documents()),
        weights_(source_->has_weights()) {}
  int64_t samples() const override { return source_->samples(); }
  std::string describe() const override { return source_->describe(); }
  uint64_t fingerprint() const override { return source_->fingerprint(); }
  bool has_documents() const override { return documents_; }
  bool has_weights() const override { return weights_; }
  std::vector<std::string> files() const override { return source_->files(); }
  std::vector<std::string> report() const override { return source_->report(); }

  void read(int64_t sample, const SampleView& out) const override {
    std::fill(out.tokens.begin(), out.tokens.end(), kUnwritten);
    std::fill(out.targets.begin(), out.targets.end(), kUnwritten);
    std::fill(out.documents.begin(), out.documents.end(), kNoDocument);
    std::fill(out.weights.begin(), out.weights.end(), std::numeric_limits<float>::quiet_NaN());
    try {
      source_->read(sample, out);
    } catch (Error& error) {
      throw error.note("sample " + std::to_string(sample));
    }
    for (size_t i = 0; i < out.tokens.size(); ++i) {
      check_id("token", sample, i, out.tokens[i]);
      if (out.targets[i] != kNoTarget) check_id("target", sample, i, out.targets[i]);
    }
    for (size_t i = 0; i < out.documents.size(); ++i)
      if (const int32_t before = i == 0 ? 0 : out.documents[i - 1]; out.documents[i] < before)
        throw refusal(ErrorCode::bad_dataset, sample, i,
                      out.documents[i] == kNoDocument
                          ? "the document was not written"
                          : "the document is " + std::to_string(out.documents[i]) +
                                (i == 0 ? ", but they count from 0"
                                        : ", behind " + std::to_string(before) +
                                              ": documents ascend within a sample"));
    for (size_t i = 0; i < out.weights.size(); ++i)
      if (!std::isfinite(out.weights[i]) || out.weights[i] < 0)
        throw refusal(ErrorCode::bad_dataset, sample, i,
                      "the weight is " +
                          (std::isnan(out.weights[i])
                               ? std::string("not a number, or was not "
                                             "written")
                               : text::format("%f", static_cast<double>(out.weights[i]))) +
                          ", but it must be 0 or more");
  }

 private:
  Error refusal(ErrorCode code, int64_t sample, size_t position, const std::string& what) const {
    return Error(code, "plugin " + plugin_ + ", sample " + std::to_string(sample) + ", position " +
                           std::to_string(position) + ": " + what)
        .key(key_);
  }
  void check_id(const char* what, int64_t sample, size_t position, int64_t id) const {
    if (id >= 0 && id < vocab_) return;
    const std::string the = std::string("the ") + what;
    if (id == kUnwritten)
      throw refusal(ErrorCode::bad_dataset, sample, position, the + " was not written")
          .help("this is a defect of the plugin: read() writes every element");
    Error error =
        refusal(ErrorCode::bad_token, sample, position,
                the + " is " + std::to_string(id) + ", but the model's vocabulary has " +
                    (vocab_ == std::numeric_limits<int64_t>::max() ? std::string("no negative")
                                                                   : std::to_string(vocab_)) +
                    " entries");
    if (id >= 0)
      error.help("use a model whose config.json has a vocab_size above " + std::to_string(id) +
                 ", or data with its own tokenizer's ids");
    throw error;
  }

  std::string key_, plugin_;
  int64_t vocab_;
  std::unique_ptr<SampleSource> source_;
  bool documents_, weights_;
};

}  // namespace

std::unique_ptr<SampleSource> checked_source(const DatasetConfig& config,
                                             std::unique_ptr<SampleSource> source) {
  return std::make_unique<CheckedSource>(config, std::move(source));
}

DatasetRequest request_of(const DatasetConfig& config) {
  const PluginData& plugin = *config.plugin;
  return {plugin.options,    config.table, config.path,      config.seq_len,
          config.vocab_size, config.seed,  plugin.pretrained};
}

void prepare_data(const DatasetConfig& config) {
  for (const DatasetConfig& one : config.sources) try {
      prepare_data(one);
    } catch (const Error& error) {
      throw named(error, one);
    }
  if (!config.plugin) return;
  const DatasetRequest request = request_of(config);
  Diagnostics found;
  config.plugin->kind->validate(request, found);
  found.throw_if_any();
  config.plugin->kind->prepare(request);
}

std::unique_ptr<SampleSource> open_samples(const DatasetConfig& config) {
  if (!config.sources.empty()) return open_mix(config);
  if (!config.plugin) return open_dataset(config);
  check_seq_len(config);
  const std::string named = "plugin " + config.plugin->name;
  std::unique_ptr<SampleSource> source = config.plugin->kind->open(request_of(config));
  if (!source)
    throw Error(ErrorCode::plugin_nonconforming, named + ": open() returned nothing")
        .key(config.key());
  source = checked_source(config, std::move(source));
  if (const int64_t samples = source->samples(); samples < 1)
    throw Error(ErrorCode::bad_dataset, named + ": the data set has " + std::to_string(samples) +
                                            " samples of " + std::to_string(config.seq_len) +
                                            " tokens")
        .key(config.key())
        .help("name more data, or set " + config.table + ".seq_len to less");
  return source;
}

uint64_t fingerprint_of(const DatasetConfig& config, const SampleSource& source) {
  if (!config.plugin) return source.fingerprint();
  base::Hash hash;
  const std::string name = text::normal(config.plugin->name);
  hash.add(name.data(), name.size());
  hash.add(source.samples());
  hash.add(static_cast<int64_t>(source.fingerprint()));
  return hash.value();
}

DataFingerprint fingerprints_of(const DatasetConfig& config, const SampleSource& source) {
  DataFingerprint out{fingerprint_of(config, source)};
  if (const auto* mix = dynamic_cast<const Mix*>(&source); mix != nullptr)
    for (const Mix::Source& one : mix->sources())
      out.sources.emplace_back(one.name, one.fingerprint);
  return out;
}

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

namespace {

void look_at(const DatasetConfig& config, const SampleSource& source) {
  if (config.plugin) return look_at_samples(source, config.seq_len);
  dynamic_cast<const Dataset&>(source).check_tokens(kTokensLookedAt);
}

}  // namespace

std::optional<DataFingerprint> look_at_data(const DatasetConfig& config, bool fingerprint) {
  prepare_data(config);
  const std::shared_ptr<const SampleSource> source = open_samples(config);
  if (const auto* mix = dynamic_cast<const Mix*>(source.get()); mix != nullptr) {
    for (const Mix::Source& one : mix->sources()) try {
        look_at(one.config, *one.samples);
      } catch (const Error& error) {
        throw named(error, one.config);
      }
  } else {
    look_at(config, *source);
  }
  return fingerprint ? std::optional(fingerprints_of(config, *source)) : std::nullopt;
}

}  // namespace meshwright::data
