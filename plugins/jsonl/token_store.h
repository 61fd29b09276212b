// Documents as token ids with what of them is a target: a file KEY.mwtokens that all processes of a
// host map, or the same bytes in memory.
//
// The file: 8 bytes of magic, u64 length and u64 XXH3-64 of the JSON header, the header, and
// sections at multiples of 64 bytes, little endian: `tokens` u64 [documents + 1], where each
// document's ids begin; `ids`, u16 where the vocabulary allows it, else u32; `runs` u64 [documents
// + 1], where each document's target runs begin; `targets` u32 [2 x runs], begin and end of a run
// of target tokens, within its document; `rows` u64 [documents], at which byte of all files, one
// behind the other, the document's row begins; `weights` f32 [documents], what each counts in the
// loss, or nothing where all count 1. The header tells its version, the key and of what it
// was made, counts, the sections' places and their XXH3-64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/error.h"
#include "sdk/base/files/foreign_file.h"

namespace meshwright::jsonl {

inline constexpr int kStoreVersion = 7;

// Tokens [begin, end) of a document.
struct Run {
  uint32_t begin = 0, end = 0;
  bool operator==(const Run&) const = default;
};

struct Document {
  std::vector<int64_t> ids;
  std::vector<Run> targets;  // ascending, apart
  uint64_t row = 0;          // byte of all files at which its row begins
  float weight = 1;          // of its targets in the loss; 0: it is left out
};

// What was met while documents were made; told when a run starts.
struct StoreCounts {
  int64_t rows = 0;
  int64_t kept_as_text = 0;    // special tokens in contents that stayed text
  int64_t open_ends = 0;       // answers that are learnt, and that no special token ends
  int64_t endless_texts = 0;   // strings without an end token, since the tokenizer has none
  int64_t double_begins = 0;   // documents that begin with two beginning-of-text tokens
  int64_t chats = 0;           // rows whose text a chat template made
  int64_t calls_left_out = 0;  // calls of tools that the template did not write
  int64_t tools_left_out = 0;  // rows whose tools the template did not write
  int64_t own_systems = 0;     // rows with a system text of their own, in a key beside the messages
  int64_t own_variables = 0;   // rows with variables for the template
  int64_t renamed = 0;         // messages whose roles have other names in their rows
  int64_t young = 0;  // characters that Unicode's tables here do not know, or not all of them
  // Of the kMost names that come first, and of the others. Longer names are cut.
  struct Names {
    static constexpr size_t kMost = 16, kLongest = 40;
    std::map<std::string, int64_t> named = {};
    int64_t others = 0;
    void add(const std::string& name, int64_t times = 1);
    void operator+=(const Names& other);
    int64_t all() const;
    bool operator==(const Names&) const = default;
  };
  Names roles;    // messages of roles that are not known
  Names columns;  // rows with a key that nothing is made of
  // Counts do not depend on the order or the groups in which they are added.
  void operator+=(const StoreCounts& other);
  bool operator==(const StoreCounts&) const = default;
};

struct StoreOrigin {
  std::string key;            // 32 hexadecimal digits
  std::string template_hash;  // of the chat templates' texts; "": none
  StoreCounts counts;
  // A JSON object of what the key was made of (key_parts()), for people; "": not known.
  std::string parts = {};
  std::string form = {};  // what the rows' columns became, for people; "": they are named so
};

// Collects documents; bytes() is the whole file.
class StoreWriter {
 public:
  explicit StoreWriter(bool wide) : wide_(wide) {}  // wide: ids do not fit into 16 bits
  void add(const Document& document);
  // Of another writer with the same width, behind what is here.
  void append(StoreWriter&& other);
  uint64_t documents() const { return tokens_.size() - 1; }
  std::vector<std::byte> bytes(const StoreOrigin& origin) const;

 private:
  bool wide_;
  std::vector<uint64_t> tokens_{0}, runs_{0}, rows_;
  std::vector<uint16_t> narrow_ids_;
  std::vector<uint32_t> wide_ids_;
  std::vector<Run> targets_;
  std::vector<float> weights_;
};

// Immutable; used by several threads at once.
class TokenStore {
 public:
  // Throws Error(bad_dataset) with file and reason when anything does not hold together: sizes,
  // checksums, order.
  static std::shared_ptr<const TokenStore> open(const std::string& path);
  static std::shared_ptr<const TokenStore> in_memory(std::vector<std::byte> bytes);

  const StoreOrigin& origin() const { return origin_; }
  uint64_t documents() const { return documents_; }
  uint64_t tokens() const { return tokens_[documents_]; }
  uint64_t tokens(uint64_t document) const { return tokens_[document + 1] - tokens_[document]; }
  // The stream of all documents' tokens, one behind the other: where a document begins, and which
  // one a token is of.
  uint64_t begin(uint64_t document) const { return tokens_[document]; }
  uint64_t document_of(uint64_t token) const;
  int64_t id(uint64_t token) const {
    return narrow_ids_ != nullptr ? narrow_ids_[token] : wide_ids_[token];
  }
  // Of a token of a document.
  int64_t id(uint64_t document, uint64_t token) const { return id(tokens_[document] + token); }
  std::span<const Run> targets(uint64_t document) const {
    return {targets_ + runs_[document], targets_ + runs_[document + 1]};
  }
  uint64_t row(uint64_t document) const { return rows_[document]; }
  // Of its targets in the loss: finite, 0 or more.
  float weight(uint64_t document) const { return weights_ != nullptr ? weights_[document] : 1; }
  // Where others find it, too: what StoreFile makes in memory is a file without a name.
  bool is_file() const { return file_ && !file_->path().starts_with("/proc/self/fd/"); }
  bool has_weights() const { return weights_ != nullptr; }
  int64_t largest_id() const { return largest_id_; }
  // Before a read of a mapped file: see MappedFile::check_size().
  void check() const;

 private:
  TokenStore() = default;
  void read(std::span<const std::byte> bytes);  // throws std::string: what is wrong
  void read_or_throw(std::span<const std::byte> bytes, ErrorCode code, const std::string& name);

  std::optional<base::MappedFile> file_;
  std::vector<std::byte> memory_;
  StoreOrigin origin_;
  uint64_t documents_ = 0;
  int64_t largest_id_ = -1;
  const uint64_t* tokens_ = nullptr;
  const uint64_t* runs_ = nullptr;
  const uint64_t* rows_ = nullptr;
  const uint16_t* narrow_ids_ = nullptr;
  const uint32_t* wide_ids_ = nullptr;
  const Run* targets_ = nullptr;
  const float* weights_ = nullptr;  // nullptr: all are 1
};

}  // namespace meshwright::jsonl
