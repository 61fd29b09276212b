// Goes through text files of any size in pieces: several threads, bounded memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/text/tokenizer/tokenizer.h"

namespace meshwright::tokenizer {

enum class Documents : uint8_t {
  files,       // every file is one document
  lines,       // every line that is not blank, without its line feed
  json_lines,  // the string `text_key` of the JSON object on every line that is not blank
};

struct WalkOptions {
  Documents documents = Documents::files;  // of Parquet always rows
  std::string text_key = "text";
  int threads = 1;
  size_t piece = 1 << 20;  // bytes that one thread takes at a time
  Cuts cuts = {};          // where a document that is larger may be cut
};

// What a document has within one piece; nearly always all of it.
struct TextPart {
  std::string_view text;           // valid UTF-8
  bool first = true, last = true;  // of its document
  const std::string& file;
  size_t at = 0;  // in the file, unpacked, where the text or its row begins
};

// What is done with one piece, by one thread.
class PieceWork {
 public:
  PieceWork() = default;
  virtual ~PieceWork() = default;
  PieceWork(const PieceWork&) = delete;
  PieceWork& operator=(const PieceWork&) = delete;
  virtual void part(const TextPart& part) = 0;
};

struct WalkCounts {
  int64_t bytes = 0, documents = 0;
  // Bytes of the largest file that could not be cut, when it is larger than a piece.
  int64_t whole = 0;
};

// Goes through files as base::UnpackedFile reads them. `begin` makes the work of a piece, in the
// thread of this number, from 0 on, that does it. `take` gets it when it is done, in the order of
// the text and in the calling thread, with the bytes of the file itself that were read for it.
// Throws Error(bad_dataset) with file and place of what is no text, and whatever the work or `take`
// throws.
WalkCounts walk_files(const std::vector<std::string>& files, const WalkOptions& options,
                      const std::function<std::unique_ptr<PieceWork>(size_t thread)>& begin,
                      const std::function<void(PieceWork& work, int64_t bytes)>& take);

}  // namespace meshwright::tokenizer
