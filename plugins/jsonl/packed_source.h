// Samples from documents: cut to length, packed, with inputs and targets.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/data/dataset_kind.h"
#include "packing.h"
#include "token_store.h"

namespace meshwright::jsonl {

enum class Truncate : uint8_t {
  right,  // the end of a document that is too long goes
  left,   // its beginning
  drop,   // all of it
};

struct SampleSettings {
  int64_t seq_len = 0;  // positions of a sample; a document of L tokens has L - 1
  Truncate truncate = Truncate::right;
  Packing packing = Packing::best_fit;
  uint64_t seed = 0;
  int64_t vocab_size = 0;             // 0: not known
  std::string table = "dataset";      // for messages
  std::string path;                   // as it was given, for messages
  std::vector<std::string> files;     // that all ranks must have alike
  std::vector<std::string> left_out;  // files beside the rows, for the report
  std::vector<std::string> empty;     // files of rows that hold none, likewise
};

// What became of the documents.
struct SampleCounts {
  int64_t used = 0, truncated = 0, too_long = 0, without_targets = 0;
  int64_t positions = 0, targets = 0;  // of those used
  int64_t longest = 0;                 // tokens of the longest document, before it was cut
};

// Tells samples from others: what they are made of.
uint64_t fingerprint_of(const TokenStore& store, const SampleSettings& settings);

// Packs follow from the documents and the settings alone.
class PackedSource final : public SampleSource {
 public:
  // Throws Error(bad_dataset) when no document is left, Error(bad_token) when the model's
  // vocabulary lacks a token.
  PackedSource(std::shared_ptr<const TokenStore> store, SampleSettings settings);
  int64_t samples() const override { return packs_.count(); }
  void read(int64_t sample, const SampleView& out) const override;
  std::string describe() const override;
  uint64_t fingerprint() const override { return fingerprint_of(*store_, settings_); }
  bool has_documents() const override { return settings_.packing != Packing::none; }
  std::vector<std::string> files() const override { return settings_.files; }
  std::vector<std::string> report() const override;
  const SampleCounts& counts() const { return counts_; }

 private:
  // Tokens [begin, end) of a document of the store.
  struct Part {
    uint32_t document, begin, end;
  };
  // What of a document is used; end == begin: nothing.
  Part part_of(uint32_t document);
  std::shared_ptr<const TokenStore> store_;
  SampleSettings settings_;
  SampleCounts counts_;
  std::vector<Part> parts_;
  Packs packs_;
};

}  // namespace meshwright::jsonl
