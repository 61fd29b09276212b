// Token streams as samples, and the order in which they are read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/options.h"

namespace meshwright::data {

struct DatasetConfig {
  std::string table = "dataset";  // for messages: the table of the keys
  std::string kind = "text";      // text | tokens | megatron | mock
  std::string path = {};          // a file, a folder or a pattern; of megatron also without .bin
  std::string dtype = "auto";     // of headerless tokens: uint16 | uint32
  int64_t seq_len = 0;
  int64_t vocab_size = 0;  // tokens at or above it are errors
  uint64_t seed = 0;       // of mock
  std::string toml = {};   // the file in which `path` was written, if one was: for advice
};

// [dataset] or [validation_dataset]. Throws Error(missing_key) when a path is needed and absent.
DatasetConfig dataset_config(const Options& table, int64_t vocab_size, uint64_t seed);

// The files that such a data set reads, in its order; of mock none. Throws Error(bad_dataset) as
// open_dataset() does.
std::vector<std::string> dataset_files(const DatasetConfig& config);

// samples() = floor((tokens - 1) / seq_len); sample i is tokens [i * seq_len, i * seq_len +
// seq_len], one more than seq_len: inputs and targets are shifted by one. Safe to read from several
// threads.
class Dataset {
 public:
  virtual ~Dataset() = default;
  int64_t tokens() const { return tokens_; }
  int64_t seq_len() const { return seq_len_; }
  int64_t samples() const { return (tokens_ - 1) / seq_len_; }
  // Writes seq_len + 1 token ids. Throws Error(bad_token) with file and offset, Error(internal) for
  // a sample out of range.
  void read(int64_t sample, int64_t* out) const;
  virtual std::string describe() const = 0;  // "12 files, 34,567 bytes"
  // Tells one data set from another: kind, sizes and a sample of the contents.
  virtual uint64_t fingerprint() const = 0;
  // Looks at up to `budget` bytes of tokens, with several threads: all of a smaller data set, else
  // blocks spread evenly over it. Throws Error(bad_token), with file and offset, for the largest
  // token of the first MiB in which one lies outside of the vocabulary. read() looks at every token
  // that it gives out in any case.
  virtual void check_tokens(int64_t /*budget*/) const {}

 protected:
  // Tokens [begin, begin + count) of the stream.
  virtual void tokens_at(int64_t begin, int64_t count, int64_t* out) const = 0;
  int64_t tokens_ = 0, seq_len_ = 1;
};

// What train finds out before its first step, and validate beforehand, about [dataset] or
// [validation_dataset]: opens the data and looks at the tokens. A GiB is the budget: it is read in
// about a second from a disk, a wrong dtype or another model's ids show in any part of a file, and
// a single token that is wrong in the rest of a larger one is still found when it is read. Throws
// as dataset_config(), open_dataset() and check_tokens(), and Error(bad_dataset) as
// check_text_model().
inline constexpr int64_t kTokensLookedAt = int64_t{1} << 30;
void look_at_data(const Options& table, int64_t vocab_size, const std::string& pretrained);

// Throws Error(bad_dataset) for text, whose tokens are bytes, with a pretrained folder (or "") that
// has a tokenizer.
void check_text_model(const DatasetConfig& config, const std::string& pretrained);

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

}  // namespace meshwright::data
