// Data sets whose tokens lie in files: what text, tokens and megatron share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/data/dataset.h"
#include "sdk/base/files/foreign_file.h"

namespace meshwright::data {

enum class TokenType : uint8_t { uint8, int8, uint16, int16, uint32, int32, int64 };
int64_t token_width(TokenType type);

// One stream of tokens of one type, over the files in the order in which they were added.
class TokenFiles final : public Dataset {
 public:
  // `advice` ends the message about a token outside of the vocabulary: what else than the model may
  // be wrong.
  TokenFiles(const DatasetConfig& config, TokenType type, std::string advice = {});
  // `count` tokens from byte `offset` on.
  void add(base::MappedFile file, int64_t offset, int64_t count);

  std::string describe() const override;
  uint64_t fingerprint() const override;
  void check_tokens(int64_t budget) const override;

 protected:
  void tokens_at(int64_t begin, int64_t count, int64_t* out) const override;

 private:
  struct Part {
    base::MappedFile file;
    int64_t offset, begin, count;  // bytes to skip; first token in the stream; tokens
  };
  // use(part, bytes, first token within the part, tokens, tokens before) for every stretch of
  // [begin, begin + count) in one file.
  template <class Use>
  void visit(int64_t begin, int64_t count, Use&& use) const;
  template <class T>
  void decode(int64_t begin, int64_t count, int64_t* out) const;
  template <class T>
  void look(int64_t budget) const;
  [[noreturn]] void bad_token(const Part& part, int64_t index, int64_t token) const;

  std::string table_, kind_, advice_;
  TokenType type_;
  int64_t vocab_;
  std::vector<Part> parts_;
};

// One file, a folder with all regular files below it, or a pattern; sorted by name. Throws
// Error(bad_dataset) when nothing is found and when a folder on the way cannot be read.
std::vector<std::string> list_files(const DatasetConfig& config);

// Throws Error(bad_dataset) for a file that numpy.save() wrote: its header would be read as tokens.
// The help says how to get rid of it.
void refuse_numpy(const base::MappedFile& file, const DatasetConfig& config);

// The index and the tokens, which are named by either or by what they have in common.
std::vector<std::string> megatron_files(const DatasetConfig& config);

std::unique_ptr<Dataset> open_text(const DatasetConfig& config);
std::unique_ptr<Dataset> open_tokens(const DatasetConfig& config);
std::unique_ptr<Dataset> open_megatron(const DatasetConfig& config);

// The header of token files, as llm.c writes it: 256 int32, of which magic, version and token count
// come first.

constexpr int64_t kTokenHeader = 1024;
struct TokenMagic {
  int32_t magic, version;
  TokenType type;
};
constexpr TokenMagic kTokenMagics[] = {{20240520, 1, TokenType::uint16},
                                       {20240801, 7, TokenType::uint32}};
// Stands for a count that an int32 does not hold, which then follows as an int64. llm.c itself has
// no such files.
constexpr int32_t kLongCount = INT32_MIN;

}  // namespace meshwright::data
