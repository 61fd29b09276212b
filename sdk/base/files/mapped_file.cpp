#include "sdk/base/files/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "sdk/base/files/foreign_file.h"

namespace meshwright::base {

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

}  // namespace meshwright::base
