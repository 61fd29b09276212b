#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "apps/doctor/look.h"
#include "engine/launch/spawn.h"

namespace meshwright::doctor {

namespace {

namespace fs = std::filesystem;
using Steady = std::chrono::steady_clock;

constexpr size_t kPiece = size_t{4} << 20;
constexpr int64_t kMost = int64_t{32} << 20;

// A file of that folder without a name, or whose name is gone before it holds anything. Returns -1
// with errno.
int open_nameless(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
  std::string name = (folder / ".meshwright_doctor_XXXXXX").string();
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

}  // namespace

Disk look_at_disk(const fs::path& folder, std::chrono::milliseconds longest) {
  Disk out;
  out.folder = folder.string();
  std::error_code failed;
  fs::path tried = fs::absolute(folder, failed).lexically_normal();
  while (!fs::exists(tried, failed) && !failed && tried.has_relative_path())
    tried = tried.parent_path();
  out.tried =
      tried == fs::absolute(folder, failed).lexically_normal() ? out.folder : tried.string();
  if (!fs::is_directory(tried, failed)) {
    out.problem = tried.string() + " is not a folder";
    return out;
  }
  const launch::Descriptor file(open_nameless(tried));
  if (file.get() < 0) {
    out.problem = "cannot write into " + tried.string() + ": " + std::strerror(errno);
    return out;
  }
  struct statvfs space{};
  if (::fstatvfs(file.get(), &space) == 0)
    out.free = static_cast<int64_t>(space.f_bavail * space.f_frsize);
  // What no file system can make smaller, or leave out.
  std::vector<uint64_t> piece(kPiece / sizeof(uint64_t));
  uint64_t state = 0x9e3779b97f4a7c15;
  for (uint64_t& word : piece) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    word = state;
  }
  const Steady::time_point begin = Steady::now();
  while (out.written < kMost && Steady::now() - begin < longest) {
    const ssize_t put = ::write(file.get(), piece.data(), kPiece);
    if (put < 0 || ::fdatasync(file.get()) != 0) {
      out.problem = "cannot write into " + tried.string() + ": " + std::strerror(errno);
      return out;
    }
    out.written += put;
    out.seconds = std::chrono::duration<double>(Steady::now() - begin).count();
  }
  return out;
}

}  // namespace meshwright::doctor
