// Writes what dataset.kind = "tokens" reads: llm.c's header and the tokens behind it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "engine/data/token_files.h"
#include "sdk/base/files/durable.h"

namespace meshwright::data {

// Tokens are written beside `path` as .NAME.tmp; `path` itself is replaced once all of them are on
// the disk, in finish(). A writer that is not finished removes what it wrote.
class TokenWriter {
 public:
  // Tokens are below `vocabulary`: of two bytes where that fits, else of four. Throws
  // Error(output_unwritable).
  TokenWriter(std::filesystem::path path, int64_t vocabulary);
  void append(std::span<const int64_t> tokens);
  void finish();
  int64_t tokens() const { return tokens_; }
  int64_t bytes() const { return file_.size(); }
  TokenType type() const { return type_; }
  const char* type_name() const { return type_ == TokenType::uint16 ? "uint16" : "uint32"; }

 private:
  std::filesystem::path path_;
  TokenType type_;
  base::NewFile file_;
  std::vector<std::byte> buffer_;
  int64_t tokens_ = 0, vocabulary_;
};

}  // namespace meshwright::data
