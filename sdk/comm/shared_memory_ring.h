// Shared memory between the ranks of one host: each rank owns a ring of slots per channel, puts
// data there once, and the others read it in place. One copy where a socket costs three and two
// system calls.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "meshwright/export.h"

namespace meshwright::detail {

// A file without a name, from one process of a host to others.

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

class SharedMemoryRing {
 public:
  static constexpr int kChannels = 2;
  enum Channel : uint8_t { gather, reduce };

  struct Sizes {
    int64_t slot[kChannels] = {0, 0};  // bytes
    int64_t ring[kChannels] = {4, 2};  // slots: one more than are ever under way at once
  };
  // What such a region takes.
  static size_t bytes_of(int64_t ranks, const Sizes& sizes);
  // The region in that file, which is all zeros before the first rank enters. nullptr when it
  // cannot be mapped, or is another one's. Ranks that are threads of one process get one mapping,
  // at one address, so that the thread sanitizer sees who reads what another has written.
  static std::unique_ptr<SharedMemoryRing> over(const FileHandle& file, int64_t ranks,
                                                const Sizes& sizes);
  MESHWRIGHT_API ~SharedMemoryRing();

  void enter(int64_t rank);  // announces this process
  bool fits(Channel channel, int64_t bytes) const { return bytes <= sizes_.slot[channel]; }
  // Memory of the next own slot; waits until all others have read what was there. `sequence` names
  // it. `bytes`: of the message, alike on all ranks. Messages of the channel gather lie one after
  // the other in the order of the ranks; who reads them may use them as one until he gives all
  // back, and must have done so before he stages the last but one of the ring behind it.
  void* stage(Channel channel, int64_t bytes, int64_t& sequence, std::chrono::milliseconds timeout);
  void publish(Channel channel, int64_t sequence);
  // A peer's slot; waits until it is published.
  const void* read(Channel channel, int64_t peer, int64_t bytes, int64_t sequence,
                   std::chrono::milliseconds timeout);
  // Every slot of a peer must be given back once, in any order; the slots of one sequence are given
  // back together, when none of them is read any more.
  void give_back(Channel channel, int64_t peer, int64_t sequence);

  // Why a wait ended without success.
  struct Late {
    int64_t peer;
  };
  struct Gone {
    int64_t peer;
  };

 private:
  struct Control;
  SharedMemoryRing(std::shared_ptr<char> memory, int64_t ranks, const Sizes& sizes);
  Control* control(int64_t rank) const;
  std::atomic<int64_t>& given_back(int64_t owner, Channel channel, int64_t reader) const;
  char* slot(Channel channel, int64_t rank, int64_t bytes, int64_t sequence) const;
  void ring(int64_t rank);
  template <class F>
  void wait_for(int64_t peer, std::chrono::milliseconds timeout, F&& ready);

  std::shared_ptr<char> mapping_;
  char* memory_;
  int64_t ranks_, rank_ = 0;
  bool entered_ = false;
  Sizes sizes_;
  int64_t next_[kChannels] = {1, 1};
  std::vector<std::set<int64_t>>
      early_[kChannels];  // by peer: given back before one that came first
};

}  // namespace meshwright::detail
