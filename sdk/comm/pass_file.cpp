#include "pass_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <random>

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

}  // namespace meshwright::detail
