// One rank's process: its environment, its pipes, and the socket on which the ranks meet.
#pragma once

#include <sys/types.h>

#include "engine/launch/supervisor.h"

namespace meshwright::launch {

// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  void close();

 private:
  int fd_;
};

// Listens on 127.0.0.1 at a free port, which nobody can take before rank 0 serves it: connections
// queue in the kernel until then.
struct Listener {
  Descriptor fd;
  int port = 0;
  std::string secret = {};  // new; the ranks have it in their environment
};
Listener listen_on_free_port();

struct Process {
  pid_t pid = -1;
  Descriptor exit;      // readable once the process has ended; -1 on kernels without pidfd
  Descriptor out, err;  // reading ends, non-blocking
};

// Starts a rank in a process group of its own, so that a Ctrl-C reaches it once, through us. Throws
// Error(rank_failed).
Process spawn_rank(const LocalJob& job, int64_t number, int64_t restart, const Listener& listener);

// Empty, for LocalJob::descriptors. Throws Error(rank_failed).
Descriptor shared_memory();

// Holds these bytes, for LocalJob::descriptors; nobody can change them. Throws Error(rank_failed).
Descriptor sealed_memory(const std::string& bytes);

}  // namespace meshwright::launch
