#include "store_file.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/error.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/hash.h"
#include "store_layout.h"

namespace meshwright::jsonl {

namespace {

constexpr size_t kPiece = 1 << 20;

// An open file that is written to at places, with what is said where it cannot be.
class OpenFile {
 public:
  OpenFile(int fd, std::string name) : fd_(fd), name_(std::move(name)) {
    if (fd_ < 0) throw base::unwritable(name_, errno, "open");
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() { ::close(fd_); }
  int fd() const { return fd_; }
  void write(const void* bytes, size_t size, uint64_t at) {
    const char* from = static_cast<const char*>(bytes);
    while (size > 0) {
      const ssize_t done = ::pwrite(fd_, from, size, static_cast<off_t>(at));
      if (done <= 0 && errno != EINTR) throw base::unwritable(name_, done == 0 ? ENOSPC : errno);
      if (done <= 0) continue;
      from += done;
      at += static_cast<uint64_t>(done);
      size -= static_cast<size_t>(done);
    }
  }
  // False: it has fewer bytes.
  bool read(void* bytes, size_t size, uint64_t at) const {
    for (char* to = static_cast<char*>(bytes); size > 0;) {
      const ssize_t done = ::pread(fd_, to, size, static_cast<off_t>(at));
      if (done == 0 || (done < 0 && errno != EINTR)) return false;
      if (done < 0) continue;
      to += done;
      at += static_cast<uint64_t>(done);
      size -= static_cast<size_t>(done);
    }
    return true;
  }
  void sync() {
    if (::fsync(fd_) != 0) throw base::unwritable(name_, errno, "sync");
  }

 private:
  int fd_;
  std::string name_;
};

int anonymous(const std::string& path) {
  if (path.empty()) return ::memfd_create("tokens", MFD_CLOEXEC);
  // It loses its name at once; one that is killed in between leaves a name like the store's own.
  std::string name = path.substr(0, path.rfind('.')) + ".XXXXXX.tmp";
  const int fd = ::mkostemps(name.data(), 4, O_CLOEXEC);
  if (fd >= 0) ::unlink(name.c_str());
  return fd;
}

// Elements one behind the other, from a place of a file on, in pieces.
template <class T>
class Column {
 public:
  Column(OpenFile& file, uint64_t begin) : file_(file), begin_(begin) {
    XXH3_64bits_reset(&sum_);
    waiting_.reserve(kPiece / sizeof(T));
  }
  void add(T value) {
    waiting_.push_back(value);
    ++count_;
    if (waiting_.size() == kPiece / sizeof(T)) flush();
  }
  void flush() {
    const size_t bytes = waiting_.size() * sizeof(T);
    XXH3_64bits_update(&sum_, waiting_.data(), bytes);
    file_.write(waiting_.data(), bytes, begin_ + written_);
    written_ += bytes;
    waiting_.clear();
  }
  uint64_t count() const { return count_; }
  Section section() {
    flush();
    return {begin_, written_, base::to_hex(XXH3_64bits_digest(&sum_))};
  }

 private:
  OpenFile& file_;
  uint64_t begin_, written_ = 0, count_ = 0;
  std::vector<T> waiting_;
  XXH3_state_t sum_;
};

}  // namespace

struct StoreFile::Parts {
  std::string path;
  bool wide;
  StoreOrigin origin;
  uint64_t most;
  OpenFile file, begins_file, rows_file;
  Column<uint16_t> narrow;
  Column<uint32_t> wide_ids;
  Column<uint64_t> begins, rows;  // of documents: the token at which one begins, and its row
  uint64_t begun = 0;             // the first token of the document that is under way
  bool finished = false;

  Parts(const std::string& name, bool is_wide, StoreOrigin from, uint64_t bytes)
      : path(name),
        wide(is_wide),
        origin(std::move(from)),
        most(bytes),
        file(name.empty()
                 ? anonymous("")
                 : ::open(name.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644),
             name.empty() ? "memory" : name),
        begins_file(anonymous(name), name.empty() ? "memory" : name),
        rows_file(anonymous(name), name.empty() ? "memory" : name),
        narrow(file, first_section(origin)),
        wide_ids(file, first_section(origin)),
        begins(begins_file, 0),
        rows(rows_file, 0) {}
  ~Parts() {
    if (!finished && !path.empty()) ::unlink(path.c_str());
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  uint64_t tokens() const { return wide ? wide_ids.count() : narrow.count(); }

  // The columns of the file itself, made of those beside it.
  template <class Take>
  void each(const OpenFile& from, const Take& take) {
    std::vector<uint64_t> piece(kPiece / sizeof(uint64_t));
    for (uint64_t done = 0, all = rows.count(); done < all;) {
      const size_t some = static_cast<size_t>(std::min<uint64_t>(piece.size(), all - done));
      if (!from.read(piece.data(), some * sizeof(uint64_t), done * sizeof(uint64_t)))
        throw base::unwritable(path, EIO, "read back");
      for (size_t i = 0; i < some; ++i) take(piece[i]);
      done += some;
    }
  }
};

StoreFile::StoreFile(const std::string& path, bool wide, StoreOrigin origin, uint64_t most)
    : parts_(std::make_unique<Parts>(path, wide, std::move(origin), most)) {}
StoreFile::~StoreFile() = default;

void StoreFile::add(std::span<const int64_t> ids) {
  for (const int64_t id : ids)
    if (parts_->wide)
      parts_->wide_ids.add(static_cast<uint32_t>(id));
    else
      parts_->narrow.add(static_cast<uint16_t>(id));
  if (bytes() > parts_->most)
    throw Error(ErrorCode::out_of_range,
                "the tokens have more than " + std::to_string(parts_->most >> 20) + " MiB");
}

bool StoreFile::end_document(uint64_t row) {
  Parts& parts = *parts_;
  if (parts.tokens() == parts.begun) return false;
  if (parts.tokens() - parts.begun > UINT32_MAX)
    throw Error(ErrorCode::out_of_range,
                "a document of " + std::to_string(parts.tokens() - parts.begun) +
                    " tokens: at most " + std::to_string(UINT32_MAX) + " are read");
  if (parts.rows.count() + 1 >= UINT32_MAX)
    throw Error(ErrorCode::out_of_range, "more than " + std::to_string(UINT32_MAX - 1) +
                                             " documents: divide the texts less finely");
  parts.begins.add(parts.begun);
  parts.rows.add(row);
  parts.begun = parts.tokens();
  return true;
}

uint64_t StoreFile::documents() const { return parts_->rows.count(); }
uint64_t StoreFile::bytes() const {
  return first_section(parts_->origin) + parts_->tokens() * (parts_->wide ? 4 : 2) +
         documents() * 32;
}

void StoreFile::finish(const StoreCounts& counts) {
  Parts& parts = *parts_;
  parts.origin.counts = counts;
  parts.begins.flush();
  parts.rows.flush();
  Sections sections;
  sections.ids = parts.wide ? parts.wide_ids.section() : parts.narrow.section();
  uint64_t at = store_aligned(sections.ids.begin + sections.ids.bytes);
  auto column = [&](Section& place, auto first, const auto& fill) {
    Column<decltype(first)> out(parts.file, at);
    fill(out);
    place = out.section();
    at = store_aligned(at + place.bytes);
  };
  column(sections.tokens, uint64_t{}, [&](auto& out) {
    parts.each(parts.begins_file, [&](uint64_t begin) { out.add(begin); });
    out.add(parts.tokens());
  });
  column(sections.runs, uint64_t{}, [&](auto& out) {
    for (uint64_t i = 0; i <= documents(); ++i) out.add(i);
  });
  column(sections.targets, Run{}, [&](auto& out) {
    uint64_t before = 0;
    bool first = true;
    auto end = [&](uint64_t token) {
      if (!std::exchange(first, false)) out.add(Run{0, static_cast<uint32_t>(token - before)});
      before = token;
    };
    parts.each(parts.begins_file, end);
    end(parts.tokens());
  });
  column(sections.rows, uint64_t{},
         [&](auto& out) { parts.each(parts.rows_file, [&](uint64_t row) { out.add(row); }); });
  const std::string front = store_front(parts.origin, documents(), parts.wide, sections);
  parts.file.write(front.data(), front.size(), 0);
  if (!parts.path.empty()) parts.file.sync();
  parts.finished = true;
}

std::shared_ptr<const TokenStore> StoreFile::open() const {
  return TokenStore::open(
      parts_->path.empty() ? "/proc/self/fd/" + std::to_string(parts_->file.fd()) : parts_->path);
}

}  // namespace meshwright::jsonl
