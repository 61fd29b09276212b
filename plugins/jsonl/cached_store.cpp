#include "cached_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "meshwright/error.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/host_facts.h"

namespace meshwright::jsonl {

std::string_view DataFile::text() const {
  if (unpacked) return *unpacked;
  if (!mapped) return {};
  const auto bytes = mapped->bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

namespace {

// Rows are looked for from both ends of a text, and by several threads: it is there as a whole.
std::optional<std::string> unpacked_text(const std::string& path, const base::Columns& columns) {
  constexpr size_t kMost = size_t{1} << 30, kSome = size_t{1} << 20;
  base::UnpackedFile file(path, ErrorCode::bad_dataset, columns);
  if (!file.packed()) return std::nullopt;
  std::string out;
  for (size_t before = 0, got = kSome; got == kSome; before = out.size()) {
    out.resize(before + kSome);
    got = file.read(std::span(out).subspan(before));
    out.resize(before + got);
    if (out.size() > kMost)
      throw Error(ErrorCode::bad_dataset, path + ": rows of more than 1 GiB once it is unpacked")
          .at({Origin::Source::file, path, 0, 0})
          .help(file.kind() == base::FileKind::parquet
                    ? "divide it into several files of fewer rows"
                    : "unpack it, and name what comes out: such files are mapped");
  }
  return out;
}

}  // namespace

std::vector<DataFile> open_files(const std::vector<std::string>& paths, Packed packed,
                                 const base::Columns& columns) {
  namespace fs = std::filesystem;
  std::vector<DataFile> out;
  uint64_t before = 0;
  for (const std::string& path : paths) {
    DataFile& file = out.emplace_back(DataFile{path, {}, before});
    std::error_code failed;
    if (fs::is_regular_file(path, failed) && fs::file_size(path, failed) == 0) continue;
    file.mapped.emplace(path, ErrorCode::bad_dataset);
    if (packed == Packed::unpacked) file.unpacked = unpacked_text(path, columns);
    before += file.text().size();
  }
  return out;
}

namespace fs = std::filesystem;

bool is_hidden(const std::string& file, const std::string& folder) {
  const fs::path below = fs::path(file).lexically_relative(folder);
  return std::any_of(below.begin(), below.end(),
                     [](const fs::path& part) { return part.native().starts_with('.'); });
}

namespace {

// An exclusive lock of the kernel's on a file, which ends with the process however it ends. Whoever
// holds it removes the file when it is done; who waited for that file then takes a new one.
class FileLock {
 public:
  explicit FileLock(std::string path) : path_(std::move(path)) { open(); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock() {
    if (held_ && is_there()) ::unlink(path_.c_str());
    if (fd_ >= 0) ::close(fd_);
  }
  bool try_take() { return take(LOCK_EX | LOCK_NB); }
  void wait() { take(LOCK_EX); }
  // Nobody else of this host has it.
  bool held() const { return held_; }

 private:
  void open() {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0) throw base::unwritable(path_, errno, "make");
  }
  // The path still names this file, and not the one of a process that came later, or none.
  bool is_there() const {
    struct stat mine = {}, there = {};
    return ::fstat(fd_, &mine) == 0 && ::stat(path_.c_str(), &there) == 0 &&
           mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
  }
  bool take(int how) {
    // File systems whose numbers of files change from call to call must not keep it here: the lock
    // counts without its name then, and the file stays.
    constexpr int kMostTries = 1000;
    for (int i = 0; i < kMostTries; ++i) {
      while (::flock(fd_, how) != 0) {
        if (errno == EWOULDBLOCK) return false;
        if (errno != EINTR) throw base::unwritable(path_, errno, "lock");
      }
      held_ = is_there();
      if (held_ || i + 1 == kMostTries) break;
      ::close(fd_);
      open();
    }
    return true;
  }
  std::string path_;
  int fd_ = -1;
  bool held_ = false;
};

// What stands there, if it is whole and of this key; what is wrong with it is told.
std::shared_ptr<const TokenStore> existing(const std::string& path, const std::string& key,
                                           const Tell& tell) {
  std::error_code failed;
  if (!fs::exists(path, failed)) return nullptr;
  std::string wrong = path + ": it has another key";
  try {
    std::shared_ptr<const TokenStore> store = TokenStore::open(path);
    if (store->origin().key == key) return store;
  } catch (const Error& error) {
    wrong = error.message();
  }
  tell("the cache is made anew: " + wrong);
  return nullptr;
}

// How the names of files begin that this host writes for a key. A host that has started again is
// another one.
std::string temporary_beginning(const std::string& key) {
  std::string host;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> host;
  if (host.empty()) host = host_name();
  return "." + key + ".mwtokens." + host + ".";
}

// What processes left that died while they wrote a store: all that begins with `ours`, if that is
// not empty, whose writers had the lock that this process has now. Of others not what was written
// to lately: of hosts that share the folder without a lock another one may be at it.
void remove_leftovers(const fs::path& folder, const std::string& ours) {
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with('.') || name.find(".mwtokens.") == std::string::npos ||
        !name.ends_with(".tmp"))
      continue;
    std::error_code gone;
    const auto written = fs::last_write_time(at->path(), gone);
    if ((!ours.empty() && name.starts_with(ours)) || (!gone && written < old))
      fs::remove(at->path(), gone);
  }
}

std::shared_ptr<const TokenStore> kept_store(const std::string& folder, const std::string& key,
                                             const StoreMaker& make, const Tell& tell) {
  base::make_folders(folder);
  const std::string path = (fs::path(folder) / (key + ".mwtokens")).string();
  // Damage is told by the one that mends it.
  const Tell nobody = [](const std::string&) {};
  if (auto store = existing(path, key, nobody)) return store;
  FileLock lock((fs::path(folder) / (key + ".lock")).string());
  if (!lock.try_take()) {
    tell("waits for another process of this host, which makes " + path);
    lock.wait();
  }
  if (auto store = existing(path, key, tell)) return store;
  remove_leftovers(folder, lock.held() ? temporary_beginning(key) : "");
  const fs::path temporary = fs::path(folder) / temporary_name(key);
  make.write(temporary.string());
  try {
    base::rename_durably(temporary, path);
  } catch (const Error&) {
    ::unlink(temporary.c_str());
    throw;
  }
  return TokenStore::open(path);
}

}  // namespace

std::string temporary_name(const std::string& key) {
  return temporary_beginning(key) + std::to_string(::getpid()) + ".tmp";
}

std::shared_ptr<const TokenStore> cached_store(const CachePlace& place, const std::string& key,
                                               const StoreMaker& make, const Tell& tell) {
  const std::string way =
      place.key.empty() ? "" : "; set " + place.key + " to a folder that may be written to";
  if (place.folder.empty()) {
    if (!place.needed) tell("there is no cache: neither XDG_CACHE_HOME nor HOME is set" + way);
  } else {
    try {
      return kept_store(place.folder, key, make, tell);
    } catch (const Error& error) {
      if (place.needed || error.code() != ErrorCode::output_unwritable) throw;
      tell("the cache cannot be written, so that every process tokenizes for itself: " +
           error.message() + way);
    }
  }
  return make.in_memory();
}

std::shared_ptr<const TokenStore> cached_store(const CachePlace& place, const std::string& key,
                                               const std::function<std::vector<std::byte>()>& build,
                                               const Tell& tell) {
  std::vector<std::byte> bytes;
  auto write = [&](const std::string& path) {
    bytes = build();
    base::NewFile file(path);
    file.append(bytes);
    file.finish();
  };
  auto in_memory = [&] {
    return TokenStore::in_memory(bytes.empty() ? build() : std::move(bytes));
  };
  return cached_store(place, key, {write, in_memory}, tell);
}

CachePlace cache_place(const std::string& said, const std::string& key) {
  CachePlace out = said == "auto" ? default_cache() : CachePlace{said == "none" ? "" : said};
  out.key = key;
  return out;
}

CachePlace default_cache() {
  // NOLINTBEGIN(concurrency-mt-unsafe): read before there are threads
  if (const char* folder = std::getenv("XDG_CACHE_HOME"); folder != nullptr && *folder != '\0')
    return {(fs::path(folder) / "meshwright").string(), false};
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return {(fs::path(home) / ".cache" / "meshwright").string(), false};
  // NOLINTEND(concurrency-mt-unsafe)
  return {"", false};
}

}  // namespace meshwright::jsonl
