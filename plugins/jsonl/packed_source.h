// Samples of one length, and the documents that are put together into them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/data/dataset_kind.h"
#include "token_store.h"

namespace meshwright::jsonl {

enum class Packing : uint8_t {
  none,        // a document a sample
  sequential,  // in order; a new pack when the next document does not fit
  best_fit,    // "bfd": longest first, each into the pack with the least room that suffices
};

// Documents of pack p are documents[begins[p] .. begins[p + 1]), in the order they lie in it.
struct Packs {
  std::vector<uint32_t> documents;
  std::vector<uint64_t> begins{0};
  int64_t count() const { return static_cast<int64_t>(begins.size()) - 1; }
  std::span<const uint32_t> pack(int64_t p) const {
    const auto at = static_cast<size_t>(p);
    return std::span(documents).subspan(begins[at], begins[at + 1] - begins[at]);
  }
};

// Every document once. `lengths` are 1 .. room; `order` is the order of documents (see
// seeded_order), and what decides between documents of one length. best_fit is best-fit-decreasing:
// of packs with equal room, the one that has had it longest is filled. About n log n, and 20 bytes
// a document.
Packs pack(std::span<const uint32_t> lengths, uint32_t room, Packing packing,
           std::span<const uint32_t> order);

// 0 .. documents - 1, in an order that follows from the seed alone, on every machine.
std::vector<uint32_t> seeded_order(uint32_t documents, uint64_t seed);

enum class Truncate : uint8_t {
  right,  // the end of a document that is too long goes
  left,   // its beginning
  drop,   // all of it
  split,  // nothing: it becomes several, each of which begins with what the one before ends with
};

struct SampleSettings {
  int64_t seq_len = 0;  // positions of a sample; a document of L tokens has L - 1
  Truncate truncate = Truncate::right;
  Packing packing = Packing::best_fit;
  uint64_t seed = 0;
  int64_t vocab_size = 0;                 // 0: not known
  std::string table = "dataset";          // for messages
  std::string path;                       // as it was given, for messages
  std::vector<std::string> files;         // that all ranks must have alike
  std::vector<std::string> left_out;      // files beside the rows, for the report
  std::vector<std::string> empty;         // files of rows that hold none, likewise
  std::string options = "dataset.jsonl";  // the table of the options, for messages
  const char* unit = "row";               // what a document is called
};

// What became of the documents.
struct SampleCounts {
  int64_t used = 0, truncated = 0, too_long = 0, without_targets = 0, of_weight_0 = 0;
  int64_t divided = 0;                 // documents of several parts
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
  bool has_weights() const override { return store_->has_weights(); }
  std::vector<std::string> files() const override { return settings_.files; }
  std::vector<std::string> report() const override;
  const SampleCounts& counts() const { return counts_; }

 private:
  // Tokens [begin, end) of a document of the store.
  struct Part {
    uint32_t document, begin, end;
  };
  // Adds what of a document is used.
  void add_parts(uint32_t document);
  bool add_part(const Part& part);
  std::shared_ptr<const TokenStore> store_;
  SampleSettings settings_;
  SampleCounts counts_;
  std::vector<Part> parts_;
  Packs packs_;
};

}  // namespace meshwright::jsonl
