// Documents one behind the other as samples of one length, as models of language are trained first.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/data/dataset_kind.h"
#include "token_store.h"

namespace meshwright::jsonl {

struct StreamSettings {
  int64_t seq_len = 0;
  int64_t vocab_size = 0;  // 0: not known
  bool apart = false;      // a token sees its document alone, which does not predict the next one
  std::string table = "dataset";      // for messages
  std::string path;                   // as it was given, for messages
  std::vector<std::string> files;     // that all ranks must have alike
  std::vector<std::string> left_out;  // files beside them, for the report
  int64_t texts = 0;                  // files that were read
  std::string place;                  // of the store, for the report
};

// Throws Error(bad_token) when the model's vocabulary lacks a token of the store.
void check_vocabulary(const TokenStore& store, int64_t vocab_size, const std::string& table,
                      const std::string& path);
// What is told of a store of texts, and where it is.
std::vector<std::string> tell_texts(const TokenStore& store, const StreamSettings& settings);

// Sample i is tokens [i * seq_len, i * seq_len + seq_len] of the stream, as of any stream of tokens
// here: inputs and targets are shifted by one.
class StreamSource final : public SampleSource {
 public:
  // Throws Error(bad_dataset) when there is not one sample.
  StreamSource(std::shared_ptr<const TokenStore> store, StreamSettings settings);
  int64_t samples() const override;
  void read(int64_t sample, const SampleView& out) const override;
  std::string describe() const override;
  uint64_t fingerprint() const override;
  bool has_documents() const override { return settings_.apart; }
  std::vector<std::string> files() const override { return settings_.files; }
  std::vector<std::string> report() const override;

 private:
  std::shared_ptr<const TokenStore> store_;
  StreamSettings settings_;
};

}  // namespace meshwright::jsonl
