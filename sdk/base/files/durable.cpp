#include "sdk/base/files/durable.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <random>
#include <utility>

#include "sdk/base/plain_text.h"

namespace meshwright::base {

namespace fs = std::filesystem;

namespace {

// The limit that this process was started with, for EFBIG; else the file system has one.
std::string limit_text(int reason) {
  rlimit limit{};
  if (reason != EFBIG || ::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return "";
  return ": this process may write files of at most " + std::to_string(limit.rlim_cur) +
         " bytes (RLIMIT_FSIZE)";
}

// What to do about the reason.
const char* remedy(int reason) {
  switch (reason) {
    case EFBIG:
      return "raise the limit of a file's size (`ulimit -f unlimited` in the shell that starts it, "
             "LimitFSIZE of a service); if there is none, choose a folder whose file system takes "
             "larger files (run.dir, --out)";
    case ENOSPC:
    case EDQUOT:
      return "make room there, or choose another folder (run.dir, --out)";
    case ENOENT:
      return "make the folder first, or choose one that is there (run.dir, --out)";
    case EISDIR:
    case ENOTDIR:
    case EEXIST:
      return "move what stands there out of the way, or choose another folder (run.dir, --out)";
    default:
      return "make room there, or choose another folder that may be written to (run.dir, --out)";
  }
}

}  // namespace

Error unwritable(const fs::path& path, int reason, std::string_view did) {
  const char* name = ::strerrorname_np(reason);
  return Error(ErrorCode::output_unwritable,
               "cannot " + std::string(did) + " " + path.string() + ": " + std::strerror(reason) +
                   (name == nullptr ? "" : " (" + std::string(name) + ")") + limit_text(reason))
      .help(remedy(reason));
}

NewFile::NewFile(fs::path path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd_ < 0) throw unwritable(path_, errno, "open");
  struct stat status{};
  ours_ = ::fstat(fd_, &status) == 0 && S_ISREG(status.st_mode);
}

NewFile::~NewFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (ours_) ::unlink(path_.c_str());
}

void NewFile::append(std::span<const std::byte> bytes) {
  constexpr int64_t kSendEvery = 16 << 20;
  constexpr size_t kMost =
      64 << 20;  // one call never takes more than 2 GiB, and answers a signal between two
  while (!bytes.empty()) {
    ssize_t n = ::write(fd_, bytes.data(), std::min(bytes.size(), kMost));
    if (n > 0) {
      bytes = bytes.subspan(static_cast<size_t>(n));
      size_ += n;
      // The disk begins while the rest is still to come, so that less is left to wait for in
      // finish(). A hint: what fails is told by fsync.
      if (size_ - sent_ >= kSendEvery) {
        static_cast<void>(::sync_file_range(fd_, sent_, size_ - sent_, SYNC_FILE_RANGE_WRITE));
        sent_ = size_;
      }
    } else if (n == 0 || errno != EINTR) {
      throw unwritable(path_, n == 0 ? ENOSPC : errno);
    }
  }
}

void NewFile::finish() {
  if (::fsync(fd_) != 0) throw unwritable(path_, errno, "sync");
  if (int fd = std::exchange(fd_, -1); ::close(fd) != 0 && errno != EINTR) {
    int reason = errno;
    if (ours_) ::unlink(path_.c_str());
    throw unwritable(path_, reason, "close");
  }
}

AppendFile::AppendFile(std::filesystem::path path, Old old) : path_(std::move(path)) {
  // A pipe that nobody reads would wait for a reader; one that somebody does may wait for him.
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK;
  const int for_old = old == Old::emptied ? O_TRUNC : old == Old::refused ? O_EXCL : 0;
  fd_ = ::open(path_.c_str(), flags | for_old | O_NOFOLLOW, 0644);
  // A link leads to a device at most: the file that another one names is somebody else's.
  if (fd_ < 0 && errno == ELOOP) {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK);
    if (struct stat status{}; fd_ >= 0 && (::fstat(fd_, &status) != 0 || S_ISREG(status.st_mode))) {
      ::close(fd_);
      throw unwritable(path_, ELOOP).help("remove the link: a run writes a file of its own");
    }
  }
  if (fd_ < 0) throw unwritable(path_, errno);
  ::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) & ~O_NONBLOCK);
}

AppendFile::~AppendFile() { ::close(fd_); }

int AppendFile::append(std::string_view text) const noexcept {
  off_t before = ::lseek(fd_, 0, SEEK_END);
  while (!text.empty()) {
    ssize_t n = ::write(fd_, text.data(), text.size());
    if (n > 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (n == 0 || errno != EINTR) {
      int reason = n == 0 ? ENOSPC : errno;
      if (before >= 0 && ::ftruncate(fd_, before) != 0 && errno == EIO) reason = EIO;
      return reason;
    }
  }
  return 0;
}

int AppendFile::sync() const noexcept {
  if (::fsync(fd_) == 0 || errno == EINVAL || errno == ENOTSUP || errno == EROFS) return 0;
  return errno;
}

bool AppendFile::removed() const noexcept {
  struct stat status{};
  return ::fstat(fd_, &status) == 0 && status.st_nlink == 0;
}

void make_folder(const fs::path& path) {
  if (::mkdir(path.c_str(), 0755) != 0) throw unwritable(path, errno, "make");
}

void make_folders(const fs::path& path) {
  std::error_code failed;
  if (path.empty() || fs::is_directory(path, failed)) return;
  if (path.has_parent_path()) make_folders(path.parent_path());
  if (::mkdir(path.c_str(), 0755) != 0 && !(errno == EEXIST && fs::is_directory(path, failed)))
    throw unwritable(path, errno, "make");
}

void sync_folder(const fs::path& path) {
  int fd = ::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw unwritable(path, errno, "open");
  int reason = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  // Some file systems cannot sync a folder and need not.
  if (reason != 0 && reason != EINVAL && reason != ENOTSUP) throw unwritable(path, reason, "sync");
}

void rename_durably(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw unwritable(to, errno, "rename");
  sync_folder(to.parent_path());
}

namespace {

fs::path beside(const fs::path& path) {
  return path.parent_path() / ("." + path.filename().string() + ".tmp");
}

// A name that nobody else takes, on no host that shares the folder.
fs::path alone_beside(const fs::path& path) {
  std::random_device random;
  const std::string tag = text::format("%08x%08x", random(), random());
  return path.parent_path() / ("." + path.filename().string() + "." + tag + ".tmp");
}

}  // namespace

void write_durably(const fs::path& path, std::string_view contents) {
  const fs::path temporary = alone_beside(path);
  NewFile file(temporary);
  file.append(contents);
  file.finish();
  try {
    rename_durably(temporary, path);
  } catch (const Error&) {
    ::unlink(temporary.c_str());
    throw;
  }
}

void append_line(const fs::path& path, std::string_view line) noexcept {
  int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW,
                  0644);
  if (fd < 0) return;
  off_t before = ::lseek(fd, 0, SEEK_END);
  std::string text = utc_now() + " " + std::string(line);
  if (!text.ends_with('\n')) text += '\n';
  // No beginning of a line is left where it does not fit.
  ssize_t n = ::write(fd, text.data(), text.size());
  if (n >= 0 && n < static_cast<ssize_t>(text.size()) && before >= 0 &&
      ::ftruncate(fd, before) != 0)
    errno = 0;
  ::close(fd);
}

void link_durably(const std::string& target, const fs::path& link) {
  fs::path temporary = beside(link);
  ::unlink(temporary.c_str());
  if (::symlink(target.c_str(), temporary.c_str()) != 0) {
    if (errno == EPERM || errno == ENOTSUP || errno == ENOSYS)
      return write_durably(link, target + "\n");
    throw unwritable(link, errno, "make");
  }
  try {
    rename_durably(temporary, link);
  } catch (const Error&) {
    ::unlink(temporary.c_str());
    throw;
  }
}

bool remove_tree(const fs::path& path) noexcept {
  std::error_code failed;
  fs::remove_all(path, failed);
  return !fs::exists(fs::symlink_status(path, failed));
}

std::string utc_now() {
  std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

int64_t monotonic_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

}  // namespace meshwright::base
