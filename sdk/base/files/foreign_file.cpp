#include "sdk/base/files/foreign_file.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "meshwright/error.h"
#include "meshwright/options.h"

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

MappedFile::MappedFile(const std::string& path, ErrorCode code) : path_(path), code_(code) {
  auto fail = [&](const std::string& what, const std::string& help) {
    throw Error(code, path + ": " + what).help(help);
  };
  const ForeignFile file(path);
  if (const int reason = file.reason(); reason != 0) {
    std::error_code failed;
    fail(file.problem(), reason == EACCES ? "make the file, and the folders above it, readable"
                         : reason == EMFILE || reason == ENFILE
                             ? "raise the limit of open files: ulimit -n"
                             : "check the name; relative paths start at the current folder, " +
                                   std::filesystem::current_path(failed).string());
  }
  struct stat info{};
  std::string problem = file.problem();
  if (problem.empty() && ::fstat(file.fd(), &info) != 0)
    problem = std::strerror(errno);
  else if (problem.empty() && info.st_size <= 0)
    problem = "is empty";
  else if (problem.empty()) {
    void* at =
        ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, file.fd(), 0);
    if (at == MAP_FAILED) {
      problem = std::string("cannot be mapped: ") + std::strerror(errno);
    } else {
      data_ = static_cast<const std::byte*>(at);
      size_ = static_cast<size_t>(info.st_size);
      device_ = info.st_dev;
      inode_ = info.st_ino;
    }
  }
  if (!problem.empty())
    fail(problem, path.find('\0') != std::string::npos
                      ? "name the file without it"
                      : "name a file that is complete: fetch, copy or make it again");
}

void MappedFile::check_size() const {
  struct stat info{};
  if (::stat(path_.c_str(), &info) != 0 || info.st_dev != device_ || info.st_ino != inode_) return;
  if (static_cast<uint64_t>(info.st_size) < size_)
    throw Error(code_, path_ + ": byte " + std::to_string(info.st_size) +
                           ": the file ends here now; it had " + std::to_string(size_) +
                           " bytes when it was opened")
        .help(
            "leave the file alone while a run reads it: write a new one beside it and rename that");
}

void MappedFile::unmap() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  data_ = nullptr;
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }
MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(code_, other.code_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
  return *this;
}
MappedFile::~MappedFile() { unmap(); }

namespace fs = std::filesystem;

namespace {

bool leads_somewhere(const fs::path& path) {
  std::error_code failed;
  if (fs::exists(path, failed)) return true;
  glob_t found{};
  bool matches = ::glob(path.c_str(), GLOB_NOSORT, nullptr, &found) == 0 && found.gl_pathc > 0;
  ::globfree(&found);
  return matches;
}

}  // namespace

std::vector<std::string> relative_path_help(const std::string& key, const std::string& path,
                                            const std::string& toml) {
  std::error_code failed;
  fs::path here = fs::current_path(failed);
  if (failed || path.empty() || fs::path(path).is_absolute()) return {};
  std::vector<std::string> out;
  fs::path folder = fs::path(toml).parent_path(), beside = (folder / path).lexically_normal();
  if (!toml.empty() &&
      fs::absolute(beside, failed).lexically_normal() != (here / path).lexically_normal() &&
      leads_somewhere(beside)) {
    out.push_back("it lies beside the configuration: set " + key + " = " +
                  to_toml(OptionValue(beside.string())));
    out.push_back("or start from that folder: cd " + folder.string());
  }
  // As configurations that ship with the program name models beside their folder.
  const fs::path above = folder.parent_path();
  if (!above.empty() && above != here && leads_somewhere(above / path))
    out.push_back("start from " + above.string() + ", or set " + key + " = " +
                  to_toml(OptionValue((above / path).string())));
  out.push_back("tried " + (here / path).lexically_normal().string() +
                ": relative paths start at the current folder, " + here.string());
  return out;
}

namespace {

// What glob() could not read: folder and errno. Its callback takes no argument of the caller's.
thread_local std::pair<std::string, int> unreadable;

bool has_contents(const fs::path& path) {
  std::error_code failed;
  return fs::is_regular_file(path, failed) && fs::file_size(path, failed) > 0 && !failed;
}

}  // namespace

// Data that is silently left out is worse than a run that does not start, so an unreadable folder
// is an error.
std::vector<std::string> list_files(const std::string& name, const std::string& key,
                                    const std::string& toml) {
  auto fail = [&](const std::string& what) { return Error(ErrorCode::bad_dataset, what).key(key); };
  if (name.find('\0') != std::string::npos) throw fail(key + " holds a NUL");
  std::vector<std::string> out;
  std::error_code failed;
  fs::file_status status = fs::status(name, failed);
  if (fs::is_directory(status)) {
    fs::recursive_directory_iterator it(name, failed), end;
    std::string place = name;
    while (!failed && it != end) {
      place = it->path().string();
      if (has_contents(it->path())) out.push_back(place);
      it.increment(failed);
    }
    if (failed)
      throw fail(place + ": cannot be read: " + failed.message())
          .help("make the folder readable, or name the files by a pattern");
  } else if (fs::exists(status)) {
    return {name};
  } else if (name.find("**") != std::string::npos) {
    // glob() takes it for one *, and files of other depths would be left out without a word.
    const std::string above = name.substr(0, name.find("**"));
    const std::string below = name.substr(std::min(name.find_last_of('/') + 1, name.size()));
    throw fail(key + " = \"" + name + "\": ** is not read; a * stays within one folder")
        .help("name the folder for all files below it: set " + key + " = \"" +
              (above.empty() ? "." : above.substr(0, above.find_last_not_of('/') + 1)) + "\"")
        .help("or one * for each folder between: " + key + " = \"" + above + "*/" +
              (below.find("**") == std::string::npos ? below : "*") + "\"");
  } else {
    glob_t found{};
    unreadable = {};
    auto on_error = [](const char* path, int reason) {
      unreadable = {path, reason};
      return reason == EACCES || reason == EIO ? 1 : 0;
    };
    int result = ::glob(name.c_str(), GLOB_NOSORT, on_error, &found);
    if (result == 0)
      for (size_t i = 0; i < found.gl_pathc; ++i)
        if (has_contents(found.gl_pathv[i])) out.emplace_back(found.gl_pathv[i]);
    ::globfree(&found);
    if (result == GLOB_ABORTED)
      throw fail(unreadable.first + ": cannot be read: " + std::strerror(unreadable.second));
    if (result == GLOB_NOSPACE)
      throw fail(key + " = \"" + name + "\" matches more files than memory holds");
  }
  if (out.empty()) {
    Error error = fail(key + " = \"" + name + "\": no file with contents matches");
    for (const std::string& help : relative_path_help(key, name, toml)) error.help(help);
    throw error;
  }
  std::sort(out.begin(), out.end());  // not as the locale would
  return out;
}

}  // namespace meshwright::base
