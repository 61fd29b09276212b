#include "sdk/base/host/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "sdk/base/files/durable.h"

namespace meshwright::base {

namespace {

int flags_of(AppendFile::Old old) {
  switch (old) {
    case AppendFile::Old::kept:
      return 0;
    case AppendFile::Old::emptied:
      return O_TRUNC;
    case AppendFile::Old::refused:
      return O_EXCL;
  }
  return 0;
}

}  // namespace

AppendFile::AppendFile(std::filesystem::path path, Old old) : path_(std::move(path)) {
  // A pipe that nobody reads would wait for a reader; one that somebody does may wait for him.
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK;
  fd_ = ::open(path_.c_str(), flags | flags_of(old) | O_NOFOLLOW, 0644);
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

}  // namespace meshwright::base
