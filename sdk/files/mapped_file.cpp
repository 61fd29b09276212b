#include "sdk/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace meshwright::base {

MappedFile::MappedFile(const std::string& path, ErrorCode code) : path_(path), code_(code) {
  auto fail = [&](const std::string& what, const std::string& help) {
    throw Error(code, path + ": " + what).help(help);
  };
  if (path.find('\0') != std::string::npos)
    fail("the name holds a NUL", "name the file without it");
  // Without O_NONBLOCK opening a pipe would wait for a writer.
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    int reason = errno;
    std::error_code failed;
    fail(std::string("cannot be opened: ") + std::strerror(reason),
         reason == EACCES ? "make the file, and the folders above it, readable"
         : reason == EMFILE || reason == ENFILE
             ? "raise the limit of open files: ulimit -n"
             : "check the name; relative paths start at the current folder, " +
                   std::filesystem::current_path(failed).string());
  }
  struct stat info{};
  std::string problem;
  if (::fstat(fd, &info) != 0)
    problem = std::strerror(errno);
  else if (S_ISDIR(info.st_mode))
    problem = "is a folder";
  else if (!S_ISREG(info.st_mode))
    problem = "is not a regular file";
  else if (info.st_size <= 0)
    problem = "is empty";
  else {
    void* at = ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED) {
      problem = std::string("cannot be mapped: ") + std::strerror(errno);
    } else {
      data_ = static_cast<const std::byte*>(at);
      size_ = static_cast<size_t>(info.st_size);
      device_ = info.st_dev;
      inode_ = info.st_ino;
    }
  }
  ::close(fd);
  if (!problem.empty()) fail(problem, "name a file that is complete: fetch, copy or make it again");
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

}  // namespace meshwright::base
