#include "engine/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace meshwright::data {

MappedFile::MappedFile(const std::string& path, ErrorCode code) : path_(path) {
  auto fail = [&](const std::string& what) { throw Error(code, path + ": " + what); };
  // Without O_NONBLOCK opening a pipe would wait for a writer.
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail(std::string("cannot be opened: ") + std::strerror(errno));
  struct stat info{};
  std::string problem;
  if (::fstat(fd, &info) != 0)
    problem = std::strerror(errno);
  else if (S_ISDIR(info.st_mode))
    problem = "is a folder";
  else if (!S_ISREG(info.st_mode))
    problem = "is not a regular file";
  else if (info.st_size == 0)
    problem = "is empty";
  if (problem.empty()) {
    size_ = static_cast<size_t>(info.st_size);
    void* at = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED)
      problem = std::string("cannot be mapped: ") + std::strerror(errno);
    else
      data_ = static_cast<const std::byte*>(at);
  }
  ::close(fd);
  if (!problem.empty()) fail(problem);
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }
MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}
MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace meshwright::data
