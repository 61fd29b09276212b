// The rows of a file, and what is told of the roles of their messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "token_store.h"

namespace meshwright::jsonl {

// `3 messages of roles that are not known: "asistant" 2 (did you mean "assistant"?), ...`; "": all
// are known.
std::string tell_roles(const StoreCounts& counts);
// `"a" 12, "b" 3, others 2`, each of the first with what `remark` says of it.
std::string tell_names(
    const StoreCounts::Names& names, const std::function<std::string(const std::string&)>& remark =
                                         [](const std::string&) { return std::string(); });

// The rows of a file as pieces of text: an object on every line that is not blank, or one list of
// objects when the file begins with `[`.

struct RowPiece {
  std::string_view text;
  int64_t line = 1;  // on which it begins
  size_t offset = 0;
  int64_t column = 1;  // of its line, in bytes
};

// Several rows of a file, that one thread takes at a time.
struct Chunk {
  size_t begin = 0, end = 0;
  int64_t line = 1, column = 1;
};

// A file cut at rows. The text must outlive it.
class RowFile {
 public:
  // `name` stands for the file in messages. Throws Error(bad_dataset) for a list that does not end
  // or that ends with a comma, and for files that begin as archives, UTF-16 or UTF-32 do, or as
  // what is packed; the file is their place.
  RowFile(std::string_view text, std::string name);
  // About `size` bytes each, together the whole file.
  std::vector<Chunk> chunks(size_t size = 1 << 20) const;
  // A row that is missing before a comma of a list is one without text, at the comma.
  std::vector<RowPiece> rows(const Chunk& chunk) const;

 private:
  // Where the element at `at` ends: at the `,` or `]` behind it, or at the end of the text.
  size_t element_end(size_t at) const;
  std::string_view text_;
  std::string name_;
  bool list_ = false;
  size_t begin_ = 0, end_ = 0;     // of the lines, or of what is between [ and ]
  int64_t line_ = 1, column_ = 1;  // at which begin_ lies
};

}  // namespace meshwright::jsonl
