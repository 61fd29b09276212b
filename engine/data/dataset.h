// What is read: samples of token streams or of a plugin, and the order in which they are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/data/dataset_kind.h"
#include "meshwright/error.h"
#include "meshwright/options.h"

namespace meshwright::data {

// A kind of data set that a plugin brings, and what it is told.
struct PluginData {
  std::string name;                   // as written in dataset.plugin
  std::shared_ptr<DatasetKind> kind;  // guarded: throws Error only
  Options options;                    // [dataset.<name>]
  std::string pretrained = {};
};

// How much of a mix a source is: [[dataset.mix]].
struct Share {
  std::optional<double> weight = {}, epochs = {};  // at most one; neither: weight 1
  // Other weights from steps on, in their order.
  std::vector<std::pair<int64_t, double>> schedule = {};
};

struct DatasetConfig {
  std::string table = "dataset";  // for messages: the table of the keys
  std::string kind = "text";      // text | tokens | megatron | mock
  std::string path = {};          // a file, a folder or a pattern; of megatron also without .bin
  std::string dtype = "auto";     // of headerless tokens: uint16 | uint32
  int64_t seq_len = 0;
  int64_t vocab_size = 0;  // tokens at or above it are errors
  uint64_t seed = 0;       // of mock, and of the order of a mix
  bool shuffle = true;     // of a mix
  std::string toml = {};   // the file in which `path` was written, if one was: for advice
  // The token that ends a document, where documents are apart (dataset.packing).
  std::optional<int64_t> document_end = {};
  std::optional<PluginData> plugin = {};  // in place of `kind`

  // Whether `kind` itself is what a plugin reads: a text that has a tokenizer.
  bool of_plugged_kind() const { return plugin && plugin->name == kind; }
  // The key that says which data it is.
  std::string key() const { return table + (plugin && !of_plugged_kind() ? ".plugin" : ".path"); }
  // Of [[dataset.mix]] and [[validation_dataset.set]]: the name and where it was written, for
  // errors, which say both.
  std::string name = {};
  Origin place = {};
  Share share = {};
  // These are read in place of all that stands above but seq_len: the sources of a mix, or sets.
  std::vector<DatasetConfig> sources = {};
};

// The same of one that is named, with its name, and the place where that has none.
Error named(Error error, const DatasetConfig& config);

// [dataset] or [validation_dataset]. Throws Error(missing_key) when a path is needed and absent.
DatasetConfig dataset_config(const Options& table, int64_t vocab_size, uint64_t seed);

// What a plugin makes of it before ranks meet. Nothing for the kinds of the engine's own. Throws
// what validate() and prepare() of the plugin found.
void prepare_data(const DatasetConfig& config);
// Opens whatever the configuration names, without reading the samples. Each sample is held against
// the vocabulary when it is read: Error(bad_token).
std::unique_ptr<SampleSource> open_samples(const DatasetConfig& config);
// Tells one data set from another: for checkpoints.
uint64_t fingerprint_of(const DatasetConfig& config, const SampleSource& source);
// The same of a mix, and of each of its sources by name, whose order is not the data's.
struct DataFingerprint {
  uint64_t whole = 0;
  std::vector<std::pair<std::string, uint64_t>> sources = {};
};
DataFingerprint fingerprints_of(const DatasetConfig& config, const SampleSource& source);

// A stream of tokens as samples. samples() = floor((tokens - 1) / seq_len); sample i is tokens [i *
// seq_len, i * seq_len + seq_len], one more than seq_len: inputs and targets are shifted by one.
class Dataset : public SampleSource {
 public:
  int64_t tokens() const { return tokens_; }
  int64_t seq_len() const { return seq_len_; }
  int64_t samples() const final { return (tokens_ - 1) / seq_len_; }
  // A token that ends a document has no target where documents are apart; without that there are
  // none in a sample. Throws Error(bad_token) with file and offset, Error(internal) for a sample
  // out of range.
  void read(int64_t sample, const SampleView& out) const final;
  bool has_documents() const final { return document_end_.has_value(); }
  std::vector<std::string> files() const final { return files_; }
  void separate_documents(std::optional<int64_t> end) { document_end_ = end; }
  void read_from(std::vector<std::string> files) { files_ = std::move(files); }
  // Writes seq_len + 1 token ids.
  void read(int64_t sample, int64_t* out) const;
  // Looks at up to `budget` bytes of tokens, with several threads: all of a smaller data set, else
  // blocks spread evenly over it. Throws Error(bad_token), with file and offset, for the largest
  // token of the first MiB in which one lies outside of the vocabulary. read() looks at every token
  // that it gives out in any case.
  virtual void check_tokens(int64_t /*budget*/) const {}

 protected:
  // Tokens [begin, begin + count) of the stream.
  virtual void tokens_at(int64_t begin, int64_t count, int64_t* out) const = 0;
  int64_t tokens_ = 0, seq_len_ = 1;

 private:
  std::optional<int64_t> document_end_;
  std::vector<std::string> files_;
};

// What train finds out before its first step, and validate beforehand, about [dataset] or
// [validation_dataset]: opens the data and looks at the tokens. A GiB is the budget: it is read in
// about a second from a disk, a wrong dtype or another model's ids show in any part of a file, and
// a single token that is wrong in the rest of a larger one is still found when it is read. Of a
// plugin's data it reads samples for a second, 64 at most, spread over all. Throws as
// open_samples() and check_tokens(). Returns the
// data's fingerprint_of() where it is asked for.
inline constexpr int64_t kTokensLookedAt = int64_t{1} << 30;
std::optional<DataFingerprint> look_at_data(const DatasetConfig& config, bool fingerprint = false);

// Throws Error(out_of_range).
void check_seq_len(const DatasetConfig& config);

// Opens without reading the contents. Throws Error(bad_dataset) naming file and offset.
std::unique_ptr<Dataset> open_dataset(const DatasetConfig& config);

// Position in the training run -> sample: a global count that knows nothing of ranks. Past the end
// the order starts again; shuffled, every epoch has its own permutation. O(1) memory.
class Sampler {
 public:
  Sampler(int64_t samples, bool shuffle, uint64_t seed);
  int64_t at(int64_t position) const;

 private:
  int64_t samples_;
  bool shuffle_;
  uint64_t seed_;
  int half_bits_;
};

// Room for one sample, and what of a sample pads it.

class SampleBuffer {
 public:
  SampleBuffer(const SampleSource& source, int64_t seq_len)
      : tokens_(static_cast<size_t>(seq_len)),
        targets_(tokens_.size()),
        documents_(source.has_documents() ? tokens_.size() : 0),
        weights_(source.has_weights() ? tokens_.size() : 0) {}
  SampleView view() { return {tokens_, targets_, documents_, weights_}; }

 private:
  std::vector<int64_t> tokens_, targets_;
  std::vector<int32_t> documents_;
  std::vector<float> weights_;
};

// Where what pads a sample begins: a last document without targets, or without documents what
// stands behind the last target; targets.size() where nothing does. `documents`: empty, or as many.
inline size_t padding_begin(std::span<const int64_t> targets, std::span<const int32_t> documents) {
  const size_t length = targets.size();
  size_t learnt = length;  // up to the last target
  while (learnt > 0 && targets[learnt - 1] == kNoTarget) --learnt;
  if (documents.empty() || length == 0) return learnt;
  size_t last = length - 1;  // where the last document begins
  while (last > 0 && documents[last - 1] == documents[last]) --last;
  return last >= learnt ? last : length;
}

// What a plugin's data set gives, held against what it promised.

// Reads of `source` fill views with what no sample holds first, so that what was not written shows.
// Throws Error(bad_token) for tokens and targets outside of the vocabulary, Error(bad_dataset) for
// documents that descend, weights below 0 or not finite, and elements that were not written; each
// names plugin, sample and position. `config.plugin` is set.
std::unique_ptr<SampleSource> checked_source(const DatasetConfig& config,
                                             std::unique_ptr<SampleSource> source);
DatasetRequest request_of(const DatasetConfig& config);

}  // namespace meshwright::data
