#include "engine/data/plugin_data.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "sdk/base/files/hash.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"

namespace meshwright::data {

namespace {

constexpr int64_t kUnwritten = std::numeric_limits<int64_t>::min();
constexpr int32_t kNoDocument = std::numeric_limits<int32_t>::min();

class CheckedSource final : public SampleSource {
 public:
  CheckedSource(const DatasetConfig& config, std::unique_ptr<SampleSource> source)
      : table_(config.table),
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
        .key(table_ + ".plugin");
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

  std::string table_, plugin_;
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
  if (!config.plugin) return;
  const DatasetRequest request = request_of(config);
  Diagnostics found;
  config.plugin->kind->validate(request, found);
  found.throw_if_any();
  config.plugin->kind->prepare(request);
}

std::unique_ptr<SampleSource> open_samples(const DatasetConfig& config) {
  if (!config.plugin) return open_dataset(config);
  check_seq_len(config);
  const std::string named = "plugin " + config.plugin->name;
  std::unique_ptr<SampleSource> source = config.plugin->kind->open(request_of(config));
  if (!source)
    throw Error(ErrorCode::plugin_nonconforming, named + ": open() returned nothing")
        .key(config.table + ".plugin");
  source = checked_source(config, std::move(source));
  if (const int64_t samples = source->samples(); samples < 1)
    throw Error(ErrorCode::bad_dataset, named + ": the data set has " + std::to_string(samples) +
                                            " samples of " + std::to_string(config.seq_len) +
                                            " tokens")
        .key(config.table + ".plugin")
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

}  // namespace meshwright::data
