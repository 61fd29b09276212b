// What rows_fuzz opens: files of rows as they should be, or nearly, and token stores that are not.
#pragma once

#include <cstddef>
#include <string>

#include "fuzz.h"

namespace meshwright::fuzz {

inline constexpr size_t kRowKinds = 5;
// The option `format` that rows of a kind are of.
inline constexpr const char* kFormats[kRowKinds] = {"messages", "messages", "prompt_completion",
                                                    "prompt_completion", "text"};

// A file of rows, most of them of the kind; a third of the files is cut, or has bytes changed.
std::string some_file(Random& random, size_t kind);
// The text of a file of so many rows, a third of them changed each by itself; now and then a list.
std::string many_rows(Random& random, size_t kind, size_t count);
// Of a whole store: one whose checksums are right and whose contents are not.
std::string forged(const std::string& store, Random& random);
// Of a whole store: what a disk may leave of it.
std::string damaged(std::string store, Random& random);

}  // namespace meshwright::fuzz
