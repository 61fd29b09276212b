// Files of text as documents: read as a stream, in little memory, packed or not.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/base/unpack/unpacked_file.h"
#include "sdk/text/tokenizer/tokenizer.h"

namespace meshwright::jsonl {

// What a document of a text file is. In files of rows (*.jsonl and *.json, packed or not, and
// *.parquet) it is always a field of a row.
enum class Divide : uint8_t {
  file,
  line,        // every line that is not blank, without its end
  blank_line,  // lines up to one that is blank, without the last one's end
  separator,   // what stands between separators
};

struct DocumentRules {
  Divide divide = Divide::file;
  std::string separator = {};  // a line break beside it goes with it
  std::string text_field = "text";
  std::string table = "dataset.text";  // of the options, for messages
};

bool is_rows_name(std::string_view path);

// A stretch of a file: whole documents, or a part of one.
struct TextPiece {
  size_t file = 0;  // the number of its file
  bool rows = false;
  uint64_t offset = 0;   // in the text of all files, unpacked, one behind the other
  uint64_t in_file = 0;  // the same in the text of its file
  int64_t line = 1;
  bool begins = true, ends = true;  // whether its first document begins, its last one ends in it
  bool packed = false;              // what it was cut from
  int64_t taken = 0;                // bytes of the file itself that were read for it
  std::string text;
};

// The stretches of all files, in order.
class TextPieces {
 public:
  // `cuts`: where a document may be cut. One that may not be and has more than `most` bytes is an
  // error. `piece`: about how many bytes a stretch has.
  TextPieces(std::vector<std::string> files, DocumentRules rules, tokenizer::Cuts cuts,
             size_t piece = size_t{1} << 20, size_t most = size_t{1} << 28);
  // nullptr: that was the last one. Throws Error(bad_dataset).
  std::unique_ptr<TextPiece> next();

 private:
  bool open_next();
  void fill(size_t size);
  size_t boundary() const;
  std::unique_ptr<TextPiece> cut(size_t at, bool ends);

  std::vector<std::string> files_;
  DocumentRules rules_;
  tokenizer::Cuts cuts_;
  size_t piece_, most_;
  size_t next_file_ = 0;
  std::optional<base::UnpackedFile> file_;
  bool rows_ = false, at_end_ = false, within_ = false;  // within_: a document that was cut
  std::string buffer_;
  uint64_t offset_ = 0, in_file_ = 0;
  int64_t line_ = 1, told_ = 0;
};

// A document of a piece, or the part of one that lies in it.
struct DocumentPart {
  std::string_view text;
  uint64_t offset = 0;  // TextPiece::offset of its first byte; of a row, of the row
  int64_t line = 1;
  bool begins = true, ends = true;
};

// All that are not blank. Throws Error(bad_dataset) "FILE:LINE: what" for what is no UTF-8, and for
// rows without a text. `name`: the file's.
void each_document(const TextPiece& piece, const DocumentRules& rules, const std::string& name,
                   const std::function<void(const DocumentPart&)>& take);

}  // namespace meshwright::jsonl
