#include "gzip_index.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "meshwright/error.h"

namespace jsonl_gz {

using meshwright::Error;
using meshwright::ErrorCode;

namespace {

constexpr size_t kWindow = 32768, kPiece = size_t{64} << 10;
constexpr int kGzip = 15 + 16, kRaw = -15;  // what zlib takes the stream for

Error damaged(const std::string& path, int64_t byte, const std::string& what) {
  return Error(ErrorCode::bad_dataset, path + ": byte " + std::to_string(byte) + ": " + what)
      .help("fetch, copy or compress the file again; gzip -t " + path + " tells when it is whole");
}

class File {
 public:
  explicit File(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "rbe")) {
    if (file_ == nullptr) fail();
  }
  ~File() { std::fclose(file_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  void seek(int64_t byte) {
    if (::fseeko(file_, byte, SEEK_SET) != 0) fail();
  }
  size_t read(std::span<unsigned char> into) {
    const size_t have = std::fread(into.data(), 1, into.size(), file_);
    if (have < into.size() && std::ferror(file_) != 0) fail();
    return have;
  }

 private:
  [[noreturn]] void fail() const {
    throw Error(ErrorCode::bad_dataset, path_ + ": cannot be read: " + std::strerror(errno));
  }
  std::string path_;
  std::FILE* file_;
};

struct Stream : z_stream {
  Stream() : z_stream{} {}
  ~Stream() { ::inflateEnd(this); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
};

}  // namespace

template <class Visit>
void GzipIndex::inflate_from(const Place& from, const Visit& visit) const {
  File file(path_);
  Stream stream;
  const bool raw = !from.window.empty();
  ::inflateInit2(&stream, raw ? kRaw : kGzip);
  file.seek(from.byte - (from.bits > 0 ? 1 : 0));
  std::vector<unsigned char> in(kPiece), out(kPiece);
  int64_t read = from.byte - (from.bits > 0 ? 1 : 0);  // bytes of the file that were taken from it
  auto fill = [&] {
    const size_t have = file.read(in);
    stream.next_in = in.data();
    stream.avail_in = static_cast<uInt>(have);
    read += static_cast<int64_t>(have);
    return have > 0;
  };
  auto here = [&] { return read - stream.avail_in; };
  auto cut_off = [&] {
    return damaged(path_, read, "the compressed data end early; the file is cut off");
  };
  if (raw) {
    if (from.bits > 0) {
      if (!fill()) throw cut_off();
      const int byte = *stream.next_in++;
      --stream.avail_in;
      ::inflatePrime(&stream, from.bits, byte >> (8 - from.bits));
    }
    ::inflateSetDictionary(&stream, from.window.data(), static_cast<uInt>(from.window.size()));
  }
  bool in_member = raw;  // else a header follows, or nothing
  bool trailer_is_ours = raw;
  for (;;) {
    if (stream.avail_in == 0 && !fill()) {
      if (in_member) throw cut_off();
      return;
    }
    in_member = true;
    stream.next_out = out.data();
    stream.avail_out = static_cast<uInt>(out.size());
    const int status = ::inflate(&stream, Z_BLOCK);
    const size_t made = out.size() - stream.avail_out;
    if (status == Z_NEED_DICT ||
        (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR))
      throw damaged(path_, here(),
                    bytes_ == 0 && made == 0 && here() < 64
                        ? "this is no gzip file"
                        : std::string("the compressed data are damaged: ") +
                              (stream.msg != nullptr ? stream.msg : "they do not hold together"));
    const std::span<const char> piece(reinterpret_cast<const char*>(out.data()), made);
    // A block has ended, and it was not the last one of its member.
    const bool at_block = (stream.data_type & 128) != 0 && (stream.data_type & 64) == 0;
    if (!visit(piece, at_block, stream, here())) return;
    if (status != Z_STREAM_END) continue;
    // A raw stream leaves checksum and length, 8 bytes, to us; the first reading has checked them.
    for (int skip = trailer_is_ours ? 8 : 0; skip > 0; --skip) {
      if (stream.avail_in == 0 && !fill()) throw cut_off();
      ++stream.next_in;
      --stream.avail_in;
    }
    trailer_is_ours = false;
    in_member = false;
    ::inflateReset2(&stream, kGzip);
  }
}

GzipIndex::GzipIndex(std::string path, int64_t spacing,
                     const std::function<void(std::span<const char>)>& take)
    : path_(std::move(path)) {
  std::vector<Place> places = {Place{}};
  inflate_from(
      Place{}, [&](std::span<const char> piece, bool at_block, z_stream& stream, int64_t byte) {
        bytes_ += static_cast<int64_t>(piece.size());
        if (!piece.empty()) take(piece);
        if (!at_block || bytes_ < places.back().contents + spacing) return true;
        Place place{bytes_, byte, stream.data_type & 7, std::vector<unsigned char>(kWindow)};
        auto size = static_cast<uInt>(kWindow);
        ::inflateGetDictionary(&stream, place.window.data(), &size);
        place.window.resize(size);
        // Without anything before it, it is the beginning of a member, which the place before
        // reaches.
        if (!place.window.empty()) places.push_back(std::move(place));
        return true;
      });
  places_ = std::move(places);
}

void GzipIndex::read(int64_t begin, const std::function<bool(std::span<const char>)>& take) const {
  auto place = std::upper_bound(places_.begin(), places_.end(), begin,
                                [](int64_t at, const Place& p) { return at < p.contents; });
  --place;
  int64_t skip = begin - place->contents;
  inflate_from(*place, [&](std::span<const char> piece, bool, z_stream&, int64_t) {
    const auto drop =
        static_cast<size_t>(std::min<int64_t>(skip, static_cast<int64_t>(piece.size())));
    skip -= static_cast<int64_t>(drop);
    return piece.size() == drop || take(piece.subspan(drop));
  });
}

}  // namespace jsonl_gz
