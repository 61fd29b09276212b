// How a rank's process ends beyond what its error says (exit_status() in meshwright/error.h).
#pragma once

#include <sys/types.h>

#include "engine/launch/supervisor.h"

namespace meshwright::launch {

inline constexpr int kPreempted =
    75;  // saved in the middle because a signal asked for it: the same command goes on
inline constexpr int kDone =
    76;  // between a rank and its supervisor: ended as it should; 0 would also be a plugin's exit()

// Limits of the process.

// Raises the soft limit of open files to the hard one, at most a million. The usual soft limit of
// 1024 is soon reached: rank 0 keeps a connection for every rank of the job, each group one for
// every member, and whoever else connects to rank 0's port takes one too.
void raise_descriptor_limit();

// Accelerators of this machine, without loading anything of theirs.

// Whether the driver of this machine lists an NVIDIA device.
bool driver_lists_devices();

// libmeshwright_engine.so, which is loaded only where something runs: it brings LibTorch.

// Throws Error(file_unreadable) where the current folder is gone: oneMKL in LibTorch looks for
// itself from there, and ends the process.
void check_current_folder();

// LibTorch as the dynamic linker will find it: the folder `torch` of its wheel, and its version.
struct LibTorch {
  std::filesystem::path folder;
  std::string version;  // "2.11.0+cu130"; empty where the folder does not tell it
};
// Looks where LD_LIBRARY_PATH says, and where an installation has it; nothing where neither has it,
// and only where it lay when this was built is left.
std::optional<LibTorch> find_libtorch();
// What installs it: a command.
std::string how_to_get_libtorch();
// What brings devices into use where the part for them is not there or, as `why` says, not loaded.
std::string how_to_get_devices(const std::string& why);

// One of its C functions (engine/train). It lies beside the SDK library and stays loaded. Throws
// Error(file_unreadable) where LibTorch is not found or of another version, Error(internal) where
// the installation is damaged.
void* engine_function(const char* name);

template <class Function>
Function* engine_function(const char* name) {
  return reinterpret_cast<Function*>(engine_function(name));
}

// From the kernel, for secrets. Throws Error(rendezvous_failed).
std::string random_bytes(size_t count);

// One rank's process: its environment, its pipes, and the socket on which the ranks meet.

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
