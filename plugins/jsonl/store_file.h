// A store that is written as its tokens come, in little memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "token_store.h"

namespace meshwright::jsonl {

// For documents all of whose tokens are targets. Ids go to the file at once; what else there is of
// each document, 16 bytes, lies in files without a name beside it until finish().
class StoreFile {
 public:
  // A file at `path`, which replaces what stands there; "": in the memory of this process, at most
  // `most` bytes. `origin`: without its counts. One that is not finished is removed. Throws
  // Error(output_unwritable), as do all methods.
  StoreFile(const std::string& path, bool wide, StoreOrigin origin, uint64_t most = UINT64_MAX);
  StoreFile(const StoreFile&) = delete;
  StoreFile& operator=(const StoreFile&) = delete;
  ~StoreFile();

  // Of the document that is under way. Throws Error(out_of_range) for more than `most` bytes.
  void add(std::span<const int64_t> ids);
  // One without a token is left out: false.
  bool end_document(uint64_t row);
  uint64_t documents() const;
  uint64_t bytes() const;  // so far
  // All is on the disk afterwards.
  void finish(const StoreCounts& counts);
  // Once it is finished; one in memory lives as long as what this returns.
  std::shared_ptr<const TokenStore> open() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace meshwright::jsonl
