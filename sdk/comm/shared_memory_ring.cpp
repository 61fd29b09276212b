#include "shared_memory_ring.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <new>
#include <random>
#include <utility>

namespace meshwright::detail {

namespace {

// Of a rank that was stopped at the wrong moment.
constexpr timeval kPatience{10, 0};

struct Address {
  sockaddr_un parts{};
  socklen_t size = 0;
  explicit Address(const std::string& name) {
    parts.sun_family = AF_UNIX;
    const size_t length = std::min(name.size(), sizeof parts.sun_path - 1);
    std::memcpy(parts.sun_path + 1, name.data(), length);  // behind a zero: abstract
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&parts); }
};

bool is_of_this_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

// One byte, with room for one descriptor beside it.
struct Parcel {
  char byte = 'f';
  iovec part{&byte, 1};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  Parcel() {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = room;
    message.msg_controllen = sizeof room;
  }
};

}  // namespace

FileHandle::~FileHandle() {
  if (fd_ >= 0) ::close(fd_);
}

FileHandle unnamed_memory(size_t bytes) {
  int fd = ::open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600);
  // Not every kernel that stands in for Linux has such files.
  if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL))
    fd = ::memfd_create("meshwright", MFD_CLOEXEC);
  FileHandle out(fd);
  if (!out || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
      ::posix_fallocate(fd, 0, static_cast<off_t>(bytes)) != 0)
    return FileHandle();
  return out;
}

FileListener::FileListener()
    : listener_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  std::random_device random;
  char text[48];
  std::snprintf(text, sizeof text, "meshwright-%08x%08x%08x%08x", random(), random(), random(),
                random());
  const Address address(text);
  constexpr int kMostClients = 64;
  if (listener_ && ::bind(listener_.get(), address.get(), address.size) == 0 &&
      ::listen(listener_.get(), kMostClients) == 0)
    name_ = text;
}

void FileListener::hand_out(const FileHandle& file) {
  for (;;) {
    const FileHandle client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client) return;
    if (!is_of_this_user(client.get())) continue;
    Parcel parcel;
    cmsghdr* with = CMSG_FIRSTHDR(&parcel.message);
    with->cmsg_level = SOL_SOCKET;
    with->cmsg_type = SCM_RIGHTS;
    with->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = file.get();
    std::memcpy(CMSG_DATA(with), &fd, sizeof fd);
    while (::sendmsg(client.get(), &parcel.message, MSG_NOSIGNAL) < 0 && errno == EINTR) {
    }
  }
}

FileClient::FileClient(const std::string& listener)
    : socket_([&] {
        const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const Address address(listener);
        if (fd < 0 || (::connect(fd, address.get(), address.size) == 0 && is_of_this_user(fd)))
          return fd;
        ::close(fd);
        return -1;
      }()) {
  if (socket_) ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
}

FileHandle FileClient::take() {
  Parcel parcel;
  ssize_t got = -1;
  do {
    got = ::recvmsg(socket_.get(), &parcel.message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  const cmsghdr* with = got == 1 ? CMSG_FIRSTHDR(&parcel.message) : nullptr;
  if (with == nullptr || with->cmsg_level != SOL_SOCKET || with->cmsg_type != SCM_RIGHTS)
    return FileHandle();
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(with), sizeof fd);
  return FileHandle(fd);
}

namespace {

constexpr size_t kPage = 4096;
constexpr int32_t kLeft = -1;  // in place of a process number: the rank has closed its side
size_t up(size_t n) { return (n + kPage - 1) / kPage * kPage; }

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen) {
  timespec limit{0, 2'000'000};  // a lost wake-up costs no more than this
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &limit, nullptr, 0);
}
void futex_wake(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr,
            0);
}

// Also one whose parent has not looked yet: its number is still taken.
bool has_ended(int32_t process) {
  if (::kill(process, 0) != 0) return errno == ESRCH;
  char path[64], text[512];
  std::snprintf(path, sizeof path, "/proc/%d/stat", process);
  int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t n = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  text[std::max<ssize_t>(n, 0)] = 0;
  const char* name_end = std::strrchr(text, ')');  // the name may hold anything
  return name_end != nullptr && name_end[1] == ' ' && (name_end[2] == 'Z' || name_end[2] == 'X');
}

// Of process numbers: containers of one machine may have their own. 0: not known.
uint64_t own_space() {
  static const uint64_t space = [] {
    struct stat found{};
    return ::stat("/proc/self/ns/pid", &found) == 0 ? static_cast<uint64_t>(found.st_ino) : 0;
  }();
  return space;
}

// The regions that this process has mapped, by device and number of the file; one that nobody uses
// any more is gone.
using FileId = std::pair<dev_t, ino_t>;
struct Mapped {
  std::mutex mutex;
  std::map<FileId, std::weak_ptr<char>> regions;
};
Mapped& mapped() {
  static auto* all = new Mapped;  // never destroyed: a region may outlive the statics
  return *all;
}

// Maps the file, which stays as large as it is, or finds that it is mapped. nullptr when it cannot
// be mapped.
std::shared_ptr<char> map_region(int fd, size_t bytes, const FileId& file) {
  std::lock_guard finding(mapped().mutex);
  std::weak_ptr<char>& known = mapped().regions[file];
  if (std::shared_ptr<char> region = known.lock()) return region;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return nullptr;
  std::shared_ptr<char> region(static_cast<char*>(memory), [bytes, file](char* at) {
    ::munmap(at, bytes);
    std::lock_guard lock(mapped().mutex);
    auto found = mapped().regions.find(file);
    if (found != mapped().regions.end() && found->second.expired()) mapped().regions.erase(found);
  });
  known = region;
  return region;
}

}  // namespace

struct SharedMemoryRing::Control {
  std::atomic<int64_t> published[kChannels];
  std::atomic<uint32_t> bell;
  std::atomic<int32_t> process;
  std::atomic<uint64_t> space;  // of process numbers; in another one this number says nothing
};

// Region: one page of control per rank, then its readers' counters, then the slots.
size_t SharedMemoryRing::bytes_of(int64_t ranks, const Sizes& sizes) {
  auto n = static_cast<size_t>(ranks);
  size_t slots = 0;
  for (int c = 0; c < kChannels; ++c)
    slots += up(static_cast<size_t>(sizes.slot[c])) * static_cast<size_t>(sizes.ring[c]);
  return n * (kPage + up(n * kChannels * sizeof(std::atomic<int64_t>)) + slots);
}

SharedMemoryRing::SharedMemoryRing(std::shared_ptr<char> memory, int64_t ranks, const Sizes& sizes)
    : mapping_(std::move(memory)), memory_(mapping_.get()), ranks_(ranks), sizes_(sizes) {
  for (auto& early : early_) early.resize(static_cast<size_t>(ranks));
}

SharedMemoryRing::~SharedMemoryRing() {
  // Who waits for this rank need not wait for the end of its process.
  if (entered_) control(rank_)->process.store(kLeft);
}

std::unique_ptr<SharedMemoryRing> SharedMemoryRing::over(const FileHandle& file, int64_t ranks,
                                                         const Sizes& sizes) {
  const size_t bytes = bytes_of(ranks, sizes);
  struct stat info{};
  if (::fstat(file.get(), &info) != 0 || info.st_size != static_cast<off_t>(bytes)) return nullptr;
  std::shared_ptr<char> memory = map_region(file.get(), bytes, {info.st_dev, info.st_ino});
  if (!memory) return nullptr;
  return std::unique_ptr<SharedMemoryRing>(new SharedMemoryRing(std::move(memory), ranks, sizes));
}

SharedMemoryRing::Control* SharedMemoryRing::control(int64_t rank) const {
  return reinterpret_cast<Control*>(memory_ + static_cast<size_t>(rank) * kPage);
}

std::atomic<int64_t>& SharedMemoryRing::given_back(int64_t owner, Channel channel,
                                                   int64_t reader) const {
  auto n = static_cast<size_t>(ranks_);
  char* table = memory_ + n * kPage +
                static_cast<size_t>(owner) * up(n * kChannels * sizeof(std::atomic<int64_t>));
  return reinterpret_cast<std::atomic<int64_t>*>(
      table)[static_cast<size_t>(channel) * n + static_cast<size_t>(reader)];
}

// First the ring of gathers, whose slots are all ranks' together, then a ring of reductions per
// rank.
char* SharedMemoryRing::slot(Channel channel, int64_t rank, int64_t bytes, int64_t sequence) const {
  auto n = static_cast<size_t>(ranks_);
  size_t sizes[kChannels], rings[kChannels];
  for (int c = 0; c < kChannels; ++c) {
    sizes[c] = up(static_cast<size_t>(sizes_.slot[c]));
    rings[c] = sizes[c] * static_cast<size_t>(sizes_.ring[c]);
  }
  char* slots = memory_ + n * (kPage + up(n * kChannels * sizeof(std::atomic<int64_t>)));
  auto turn = static_cast<size_t>(sequence % sizes_.ring[channel]),
       place = static_cast<size_t>(rank);
  if (channel == gather)
    return slots + turn * sizes[gather] * n + place * static_cast<size_t>(bytes);
  return slots + n * rings[gather] + place * rings[reduce] + turn * sizes[reduce];
}

void SharedMemoryRing::enter(int64_t rank) {
  rank_ = rank;
  entered_ = true;
  control(rank)->space.store(own_space());
  control(rank)->process.store(::getpid());
}

void SharedMemoryRing::ring(int64_t rank) {
  control(rank)->bell.fetch_add(1);
  futex_wake(control(rank)->bell);
}

template <class F>
void SharedMemoryRing::wait_for(int64_t peer, std::chrono::milliseconds timeout, F&& ready) {
  for (int i = 0; i < 100; ++i) {
    if (ready()) return;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  auto begin = std::chrono::steady_clock::now();
  std::atomic<uint32_t>& bell = control(peer)->bell;
  for (int turn = 0;; ++turn) {
    uint32_t seen = bell.load();
    if (ready()) return;
    futex_wait(bell, seen);
    if (turn % 32 != 31) continue;
    if (std::chrono::steady_clock::now() - begin > timeout) throw Late{peer};
    int32_t process = control(peer)->process.load();
    if (process == kLeft ||
        (process > 0 && control(peer)->space.load() == own_space() && has_ended(process))) {
      if (ready()) return;
      throw Gone{peer};
    }
  }
}

void* SharedMemoryRing::stage(Channel channel, int64_t bytes, int64_t& sequence,
                              std::chrono::milliseconds timeout) {
  sequence = next_[channel];
  for (int64_t peer = 0; peer < ranks_; ++peer)
    if (peer != rank_)
      wait_for(peer, timeout, [&] {
        return given_back(rank_, channel, peer).load(std::memory_order_acquire) >=
               sequence - sizes_.ring[channel];
      });
  ++next_[channel];
  return slot(channel, rank_, bytes, sequence);
}

void SharedMemoryRing::publish(Channel channel, int64_t sequence) {
  control(rank_)->published[channel].store(sequence, std::memory_order_release);
  ring(rank_);
}

const void* SharedMemoryRing::read(Channel channel, int64_t peer, int64_t bytes, int64_t sequence,
                                   std::chrono::milliseconds timeout) {
  wait_for(peer, timeout, [&] {
    return control(peer)->published[channel].load(std::memory_order_acquire) >= sequence;
  });
  return slot(channel, peer, bytes, sequence);
}

void SharedMemoryRing::give_back(Channel channel, int64_t peer, int64_t sequence) {
  // The owner reuses slots in order, so one that is done with early waits for those before it.
  std::atomic<int64_t>& done = given_back(peer, channel, rank_);
  int64_t until = done.load(std::memory_order_relaxed);
  std::set<int64_t>& early = early_[channel][static_cast<size_t>(peer)];
  if (sequence == until + 1)
    ++until;
  else
    early.insert(sequence);
  for (auto next = early.begin(); next != early.end() && *next == until + 1;
       next = early.erase(next))
    ++until;
  done.store(until, std::memory_order_release);
  ring(rank_);  // the owner waits at its readers' bells
}

}  // namespace meshwright::detail
