#include "sdk/base/files/foreign_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace meshwright::base {

bool ForeignFile::fail(int reason, const std::string& what) {
  reason_ = reason;
  problem_ = reason == 0 ? what : what + ": " + std::strerror(reason);
  return false;
}

bool ForeignFile::judge(uint32_t mode) {
  if (S_ISDIR(mode)) return fail(0, "is a folder");
  if (S_ISLNK(mode)) return fail(0, "is a link");
  return S_ISREG(mode) || fail(0, "is not a regular file");
}

ForeignFile::ForeignFile(const std::filesystem::path& path, Links links) {
  const bool follow = links == Links::followed;
  struct stat named{}, opened{};
  if (path.native().find('\0') != std::string::npos) {
    fail(0, "the name holds a NUL");
    return;
  }
  // To open a device can be an act of its own, so it is asked what stands there first.
  if ((follow ? ::stat(path.c_str(), &named) : ::lstat(path.c_str(), &named)) != 0) {
    fail(errno, "cannot be opened");
    return;
  }
  if (!judge(named.st_mode)) return;
  // Without O_NONBLOCK a pipe that took its place meanwhile would wait for a writer.
  fd_ = ::open(path.c_str(),
               O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (follow ? 0 : O_NOFOLLOW));
  if (fd_ < 0) {
    fail(errno, "cannot be opened");
    return;
  }
  const bool good = ::fstat(fd_, &opened) == 0 ? judge(opened.st_mode) : fail(errno, "is lost");
  size_ = opened.st_size;
  if (good) return;
  ::close(fd_);
  fd_ = -1;
}

ForeignFile::~ForeignFile() {
  if (fd_ >= 0) ::close(fd_);
}

std::string ForeignFile::read(size_t most) {
  std::string out;
  if (fd_ < 0) return out;
  auto too_long = [&] {
    fail(0, "has more than " + (most >= (1 << 20) ? std::to_string(most >> 20) + " MiB"
                                                  : std::to_string(most) + " bytes"));
    return std::string();
  };
  if (static_cast<uint64_t>(size_) > most) return too_long();
  // One byte more than it had: the end is seen at once, and one that grows is still read.
  constexpr size_t kPiece = 1 << 16;
  for (size_t room = static_cast<size_t>(size_) + 1;; room = kPiece) {
    const size_t begin = out.size();
    out.resize(begin + std::min(room, most - begin + 1));
    const ssize_t got =
        ::pread(fd_, out.data() + begin, out.size() - begin, static_cast<off_t>(begin));
    out.resize(begin + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return out;
    if (got < 0 && errno != EINTR) return fail(errno, "cannot be read"), std::string();
    if (out.size() > most) return too_long();
  }
}

std::string read_foreign(const std::filesystem::path& path, size_t most, ErrorCode code) {
  ForeignFile file(path);
  std::string out = file.read(most);
  if (!file.problem().empty()) throw Error(code, path.string() + ": " + file.problem());
  return out;
}

std::string read_file(const std::filesystem::path& path, size_t most) {
  return ForeignFile(path).read(most);
}

}  // namespace meshwright::base
