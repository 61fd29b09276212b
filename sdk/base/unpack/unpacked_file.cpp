#include "sdk/base/unpack/unpacked_file.h"

#define ZLIB_CONST
#include <dlfcn.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "sdk/base/beside.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/shell_word.h"
#include "sdk/base/unpack/parquet_rows.h"

namespace meshwright::base {

std::string_view unpacked_name(std::string_view path) {
  for (const std::string_view end : {".gz", ".zst", ".zstd"})
    if (path.ends_with(end)) return path.substr(0, path.size() - end.size());
  return path;
}

Error packed_within(const std::string& path, FileKind kind, ErrorCode code) {
  return Error(code,
               path + ": the file is packed, and what comes out is " + std::string(name_of(kind)))
      .at({Origin::Source::file, path, 0, 0})
      .help("unpack it once: " + std::string(path.ends_with(".gz") ? "gzip -d " : "zstd -d ") +
            text::shell_word(path));
}

namespace {

constexpr size_t kPiece = 1 << 18;

struct EndInflate {
  void operator()(z_stream* stream) const {
    ::inflateEnd(stream);
    delete stream;
  }
};
struct EndZstd {
  void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
};

// The function of the library that reads Parquet.
OpenParquet open_parquet(const std::string& path, ErrorCode code) {
  const std::filesystem::path library = beside_sdk("libmeshwright_parquet.so");
  auto refused = [&](const std::string& what) {
    return Error(code, path + ": the file is Parquet, and " + what)
        .at({Origin::Source::file, path, 0, 0});
  };
  const std::string convert =
      "or write it as JSON lines (pip install pyarrow): python3 -c 'import json, sys, "
      "pyarrow.parquet as p; full = lambda o: {k: v for k, v in o.items() if v is not None}; "
      "[print(json.dumps(json.loads(json.dumps(r, default=str), object_hook=full))) for b in "
      "p.ParquetFile(sys.argv[1]).iter_batches() for r in b.to_pylist()]' " +
      text::shell_word(path) + " > rows.jsonl";
  if (!std::filesystem::exists(library))
    throw refused("the part that reads it is not in this build (" + library.string() +
                  " is not there)")
        .help(
            "run ./quickstart --parquet once in Meshwright's sources: it fetches Arrow's "
            "libraries and builds the part")
        .help(convert);
  void* loaded = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (loaded == nullptr) {
    const bool in_wheel = library.parent_path().parent_path().filename() == "_native";
    const char* why = ::dlerror();  // NOLINT(concurrency-mt-unsafe): each thread has its own
    throw refused("the part that reads it cannot be loaded: " +
                  std::string(why != nullptr ? why : "no reason is given"))
        .help(in_wheel ? "pip install 'pyarrow==" MESHWRIGHT_ARROW_RELEASE
                         ".*' into the environment that Meshwright is in"
                       : "pip download --no-deps 'pyarrow==" MESHWRIGHT_ARROW_RELEASE
                         ".*', unpack that wheel, and ln -s <its pyarrow folder> " +
                             beside_sdk("meshwright/pyarrow").string())
        .help(convert);
  }
  void* const symbol = ::dlsym(loaded, kOpenParquet);
  if (symbol == nullptr) throw refused(library.string() + " is none of Meshwright's libraries");
  return reinterpret_cast<OpenParquet>(symbol);
}

}  // namespace

struct UnpackedFile::Parts {
  std::string path;
  ErrorCode code;
  ForeignFile file;
  FileKind kind = FileKind::plain;
  std::vector<char> piece = std::vector<char>(kPiece);
  size_t at = 0, end = 0;  // what of the piece is left
  int64_t before = 0;      // bytes of the file before the piece
  bool within = false;     // a member or a frame that has not ended
  bool ended_one = false;  // one that did
  std::unique_ptr<z_stream, EndInflate> inflating;
  std::unique_ptr<ZSTD_DStream, EndZstd> zstd;
  std::unique_ptr<ParquetRows> rows;

  Parts(const std::string& name, ErrorCode wanted, const Columns& columns)
      : path(name), code(wanted), file(name) {
    if (!file.is_open() || !file.problem().empty()) throw Error(code, path + ": " + file.problem());
    fill();
    const FileKind begun = kind_of({piece.data(), end});
    kind = kind_of({piece.data(), end}, last_bytes());
    if (kind == FileKind::plain && is_packed_name(path))
      kind = path.ends_with(".gz") ? FileKind::gzip : FileKind::zstd;
    if (kind == FileKind::plain && is_parquet_name(path)) kind = FileKind::parquet;
    if (kind == FileKind::plain) return;
    if (end == 0) throw damaged("the file is empty");
    if (kind == FileKind::parquet) {
      if (begun != kind) throw damaged("no Parquet file begins so: \"PAR1\" is missing");
      rows.reset(open_parquet(path, code)({file.fd(), path, code, columns}));
      return;
    }
    if (kind == FileKind::zstd) {
      zstd.reset(ZSTD_createDStream());
      if (!zstd) throw Error(code, path + ": no memory is left to unpack it");
      return;
    }
    inflating.reset(new z_stream{});
    if (::inflateInit2(inflating.get(), 16 + MAX_WBITS) != Z_OK)  // 16: gzip alone
      throw Error(code, path + ": no memory is left to unpack it");
  }

  std::string last_bytes() const {
    std::string out(4, '\0');
    const auto size = static_cast<off_t>(out.size());
    const ssize_t got =
        ::pread(file.fd(), out.data(), out.size(), std::max(file.size() - size, off_t{0}));
    out.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    return out;
  }
  int64_t place() const { return before + static_cast<int64_t>(at); }
  Error damaged(const std::string& what) const {
    return Error(code, path + ": " + what + " at byte " + std::to_string(place()))
        .at({Origin::Source::file, path, 0, 0})
        .help(kind == FileKind::parquet
                  ? std::string("fetch or write it again")
                  : "`" + std::string(name_of(kind)) +
                        " -t` tells whether it is whole; fetch or pack it again");
  }
  Error ends_early() const { return damaged("the file ends in the middle of its packed data,"); }

  // More of the file where the piece is used up; false: there is none.
  bool fill() {
    if (at < end) return true;
    before += static_cast<int64_t>(end);
    at = end = 0;
    for (;;) {
      const ssize_t got = ::read(file.fd(), piece.data(), piece.size());
      if (got >= 0) {
        end = static_cast<size_t>(got);
        return got > 0;
      }
      if (errno != EINTR)
        throw Error(code, path + ": cannot be read at byte " + std::to_string(before) + ": " +
                              std::strerror(errno));
    }
  }

  size_t read_plain(std::span<char> out) {
    size_t done = 0;
    while (done < out.size() && fill()) {
      const size_t some = std::min(out.size() - done, end - at);
      std::memcpy(out.data() + done, piece.data() + at, some);
      at += some;
      done += some;
    }
    return done;
  }

  // Zeros may fill the file up behind a member, as tapes have it.
  bool begin_member() {
    for (; ended_one; ++at) {
      if (!fill()) return false;
      if (piece[at] != '\0') break;
    }
    if (!fill()) return false;
    if (ended_one) ::inflateReset(inflating.get());
    return within = true;
  }

  size_t read_gzip(std::span<char> out) {
    z_stream& z = *inflating;
    size_t done = 0;
    while (done < out.size()) {
      if (!within && !begin_member()) break;
      if (!fill()) throw ends_early();
      z.next_in = reinterpret_cast<const Bytef*>(piece.data() + at);
      z.avail_in = static_cast<uInt>(end - at);
      const auto room = static_cast<uInt>(std::min<size_t>(out.size() - done, 1U << 30));
      z.next_out = reinterpret_cast<Bytef*>(out.data() + done);
      z.avail_out = room;
      const int result = ::inflate(&z, Z_NO_FLUSH);
      at = end - z.avail_in;
      done += room - z.avail_out;
      if (result == Z_STREAM_END) {
        within = false;
        ended_one = true;
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        throw damaged("its gzip data is damaged (" +
                      std::string(z.msg != nullptr ? z.msg : ::zError(result)) + ")");
      }
    }
    return done;
  }

  size_t read_zstd(std::span<char> out) {
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    while (to.pos < to.size) {
      const bool more = fill();
      if (!more && !within) break;
      ZSTD_inBuffer from{piece.data() + at, end - at, 0};
      const size_t before_it = to.pos;
      const size_t left = ZSTD_decompressStream(zstd.get(), &to, &from);
      if (ZSTD_isError(left) != 0) {
        Error error =
            damaged("its zstd data is damaged (" + std::string(ZSTD_getErrorName(left)) + ")");
        if (ZSTD_getErrorCode(left) == ZSTD_error_frameParameter_windowTooLarge)
          error = Error(code, path + ": it looks back further than 128 MiB (`zstd --long`)")
                      .help("unpack it: zstd -d --long=31 " + path);
        throw error;
      }
      at += from.pos;
      within = left != 0;
      if (!more && within && to.pos == before_it) throw ends_early();
    }
    return to.pos;
  }
};

UnpackedFile::UnpackedFile(const std::string& path, ErrorCode code, const Columns& columns)
    : parts_(std::make_unique<Parts>(path, code, columns)) {}
UnpackedFile::UnpackedFile(UnpackedFile&&) noexcept = default;
UnpackedFile& UnpackedFile::operator=(UnpackedFile&&) noexcept = default;
UnpackedFile::~UnpackedFile() = default;

size_t UnpackedFile::read(std::span<char> out) {
  switch (parts_->kind) {
    case FileKind::plain:
      return parts_->read_plain(out);
    case FileKind::gzip:
      return parts_->read_gzip(out);
    case FileKind::zstd:
      return parts_->read_zstd(out);
    case FileKind::parquet:
      return parts_->rows->read(out);
  }
  return 0;
}
FileKind UnpackedFile::kind() const { return parts_->kind; }
int64_t UnpackedFile::size() const { return parts_->file.size(); }
int64_t UnpackedFile::taken() const {
  return parts_->rows ? parts_->rows->taken() : parts_->place();
}

}  // namespace meshwright::base
