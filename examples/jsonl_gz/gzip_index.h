// Reads gzip files from anywhere: places to begin at are remembered while a file is read once
// (zlib's examples/zran.c shows the idea).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace jsonl_gz {

// One file, of one gzip member or several behind each other. const methods may be called by several
// threads at once.
class GzipIndex {
 public:
  // Reads all of the file, and gives its contents to `take` piece by piece. A place to begin at
  // every `spacing` bytes of contents costs 32 KiB of memory. Throws
  // meshwright::Error(bad_dataset) with file and byte: not gzip, cut off, damaged.
  GzipIndex(std::string path, int64_t spacing,
            const std::function<void(std::span<const char>)>& take);
  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }  // of the contents
  int64_t places() const { return static_cast<int64_t>(places_.size()); }
  // Contents from `begin` on, piece by piece, until `take` has enough and returns false, or the
  // file ends.
  void read(int64_t begin, const std::function<bool(std::span<const char>)>& take) const;

 private:
  struct Place {
    int64_t contents = 0;                    // bytes of contents before it
    int64_t byte = 0;                        // of the file, behind the bits that belong to it
    int bits = 0;                            // of the byte before
    std::vector<unsigned char> window = {};  // the 32 KiB before; empty: a member begins here
  };
  // Inflates from a place on. `visit(piece, at the end of a block, the stream)`: false to stop.
  template <class Visit>
  void inflate_from(const Place& from, const Visit& visit) const;

  std::string path_;
  int64_t bytes_ = 0;
  std::vector<Place> places_;
};

}  // namespace jsonl_gz
