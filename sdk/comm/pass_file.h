// A file without a name, from one process of a host to others.
#pragma once

#include <string>

namespace meshwright::detail {

// Closes itself.
class FileHandle {
 public:
  explicit FileHandle(int fd = -1) : fd_(fd) {}
  ~FileHandle();
  FileHandle(FileHandle&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileHandle(const FileHandle&) = delete;
  FileHandle& operator=(const FileHandle&) = delete;
  FileHandle& operator=(FileHandle&&) = delete;
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

// Memory of `bytes` in /dev/shm, all zeros, that has no name there: it goes with the last process
// that holds it, however that ends. Reserved now: a full file system is an answer here and would be
// a SIGBUS later. No handle: there is no room.
FileHandle unnamed_memory(size_t bytes);

// Where processes of this user, kernel and network get a file. The address is abstract: it lies
// nowhere, and goes with this object or its process.
class FileListener {
 public:
  FileListener();
  const std::string& name() const {
    return name_;
  }  // nobody can guess it; empty: there is no listener
  // To all that have connected.
  void hand_out(const FileHandle& file);

 private:
  std::string name_;
  FileHandle listener_;
};

// The other side: first it connects, then, once hand_out() is under way, it takes.
class FileClient {
 public:
  explicit FileClient(const std::string& listener);
  explicit operator bool() const { return static_cast<bool>(socket_); }
  FileHandle take();  // no handle: the listener's process has ended, or is silent

 private:
  FileHandle socket_;
};

}  // namespace meshwright::detail
