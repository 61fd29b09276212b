// Preloaded into a program under test: the n-th call of one kind on paths under a folder fails.
//
//   FILE_SHIM_UNDER=/run/checkpoints   paths that count: this one and all below it
//   FILE_SHIM_CALL=write               write | fsync | rename | mkdir | symlink | open | close |
//   remove: any of the functions that do so FILE_SHIM_NTH=3                    of this process,
//   from 1 FILE_SHIM_FAULT=EIO                EIO or ENOSPC: that call fails; full: that call and
//   all writes after it fail with ENOSPC, the first
//                                      after writing half; short: half is written, and nothing else
//                                      happens; hang: it never returns
//   FILE_SHIM_RANK=1                   only in the process with this RANK; absent: in all
//   FILE_SHIM_LOG=/tmp/log             gets a line for the call that failed: "write 3
//   /run/checkpoints/x"
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

enum class Fault { error, full, short_write, hang };

struct Settings {
  const char *under = nullptr, *call = "", *log = nullptr;
  long nth = 0;
  Fault fault = Fault::error;
  int reason = EIO;
};

const Settings& settings() {
  static const Settings made = [] {
    Settings s;
    auto text = [](const char* name) {
      const char* value = std::getenv(name);
      return value == nullptr ? "" : value;
    };
    const char *rank = std::getenv("FILE_SHIM_RANK"), *own = std::getenv("RANK");
    if (*text("FILE_SHIM_UNDER") == 0 ||
        (rank != nullptr && (own == nullptr || std::strcmp(rank, own) != 0)))
      return s;
    s.under = text("FILE_SHIM_UNDER");
    s.call = text("FILE_SHIM_CALL");
    s.nth = std::atol(text("FILE_SHIM_NTH"));
    s.log = std::getenv("FILE_SHIM_LOG");
    const char* fault = text("FILE_SHIM_FAULT");
    s.fault = std::strcmp(fault, "full") == 0    ? Fault::full
              : std::strcmp(fault, "short") == 0 ? Fault::short_write
              : std::strcmp(fault, "hang") == 0  ? Fault::hang
                                                 : Fault::error;
    if (std::strcmp(fault, "ENOSPC") == 0 || s.fault == Fault::full) s.reason = ENOSPC;
    return s;
  }();
  return made;
}

std::atomic<long> g_calls{0};

bool under(const char* path) {
  size_t length = std::strlen(settings().under);
  return path != nullptr && std::strncmp(path, settings().under, length) == 0 &&
         (path[length] == 0 || path[length] == '/');
}

// By itself: neither counted nor failed.
void tell(const char* call, long number, const char* path) {
  if (settings().log == nullptr) return;
  int fd = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, settings().log,
                                      O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (fd < 0) return;
  char line[PATH_MAX + 64];
  int n = std::snprintf(line, sizeof line, "%s %ld %s\n", call, number, path);
  ::syscall(SYS_write, fd, line, static_cast<size_t>(n));
  ::syscall(SYS_close, fd);
}

enum class Verdict { pass, fail, half };

Verdict judge(const char* call, const char* path) {
  const Settings& s = settings();
  if (s.under == nullptr || std::strcmp(call, s.call) != 0 || !under(path)) return Verdict::pass;
  long number = ++g_calls;
  if (number < s.nth || (number > s.nth && s.fault != Fault::full)) return Verdict::pass;
  if (number == s.nth) tell(call, number, path);
  while (s.fault == Fault::hang) ::pause();
  if (s.fault == Fault::short_write || (s.fault == Fault::full && number == s.nth))
    return Verdict::half;
  errno = s.reason;
  return Verdict::fail;
}

Verdict judge(const char* call, int fd) {
  if (settings().under == nullptr || std::strcmp(call, settings().call) != 0) return Verdict::pass;
  char link[40], path[PATH_MAX];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = ::readlink(link, path, sizeof path - 1);
  if (n < 0) return Verdict::pass;
  path[n] = 0;
  return judge(call, path);
}

template <class F>
F next(const char* name) {
  return reinterpret_cast<F>(::dlsym(RTLD_NEXT, name));
}

// Files that are made or emptied: opening one to read it does not count.
bool creates(int flags) { return (flags & (O_CREAT | O_TRUNC)) != 0; }

// A write of one byte has no half.
size_t half_of(size_t count) { return count > 1 ? count / 2 : count; }

}  // namespace

#define SHIM extern "C" __attribute__((visibility("default")))

SHIM ssize_t write(int fd, const void* bytes, size_t count) {
  static auto real = next<ssize_t (*)(int, const void*, size_t)>("write");
  switch (judge("write", fd)) {
    case Verdict::fail:
      return -1;
    case Verdict::half:
      return real(fd, bytes, half_of(count));
    case Verdict::pass:
      break;
  }
  return real(fd, bytes, count);
}

SHIM ssize_t pwrite64(int fd, const void* bytes, size_t count, off64_t at) {
  static auto real = next<ssize_t (*)(int, const void*, size_t, off64_t)>("pwrite64");
  switch (judge("write", fd)) {
    case Verdict::fail:
      return -1;
    case Verdict::half:
      return real(fd, bytes, half_of(count), at);
    case Verdict::pass:
      break;
  }
  return real(fd, bytes, count, at);
}
SHIM ssize_t pwrite(int fd, const void* bytes, size_t count, off_t at) {
  return pwrite64(fd, bytes, count, at);
}

SHIM ssize_t writev(int fd, const iovec* parts, int count) {
  static auto real = next<ssize_t (*)(int, const iovec*, int)>("writev");
  switch (judge("write", fd)) {
    case Verdict::fail:
      return -1;
    case Verdict::half:
      return real(fd, parts, count > 1 ? count / 2 : count);
    case Verdict::pass:
      break;
  }
  return real(fd, parts, count);
}

SHIM int fsync(int fd) {
  static auto real = next<int (*)(int)>("fsync");
  return judge("fsync", fd) == Verdict::fail ? -1 : real(fd);
}
SHIM int fdatasync(int fd) {
  static auto real = next<int (*)(int)>("fdatasync");
  return judge("fsync", fd) == Verdict::fail ? -1 : real(fd);
}
SHIM int close(int fd) {
  static auto real = next<int (*)(int)>("close");
  if (judge("close", fd) != Verdict::fail) return real(fd);
  int reason = errno;
  real(fd);  // as the kernel does: the number is free whatever the answer
  errno = reason;
  return -1;
}

SHIM int rename(const char* from, const char* to) noexcept {
  static auto real = next<int (*)(const char*, const char*)>("rename");
  return judge("rename", to) == Verdict::fail ? -1 : real(from, to);
}
SHIM int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  static auto real = next<int (*)(int, const char*, int, const char*)>("renameat");
  return judge("rename", to) == Verdict::fail ? -1 : real(from_folder, from, to_folder, to);
}
SHIM int renameat2(int from_folder, const char* from, int to_folder, const char* to,
                   unsigned flags) noexcept {
  static auto real = next<int (*)(int, const char*, int, const char*, unsigned)>("renameat2");
  return judge("rename", to) == Verdict::fail ? -1 : real(from_folder, from, to_folder, to, flags);
}
SHIM int mkdir(const char* path, mode_t mode) noexcept {
  static auto real = next<int (*)(const char*, mode_t)>("mkdir");
  return judge("mkdir", path) == Verdict::fail ? -1 : real(path, mode);
}
SHIM int symlink(const char* target, const char* path) noexcept {
  static auto real = next<int (*)(const char*, const char*)>("symlink");
  return judge("symlink", path) == Verdict::fail ? -1 : real(target, path);
}

// Names in a folder that is open, as trees are removed.
SHIM int unlinkat(int folder, const char* path, int flags) noexcept {
  static auto real = next<int (*)(int, const char*, int)>("unlinkat");
  if (settings().under != nullptr && path[0] != '/' && folder != AT_FDCWD) {
    char link[40], whole[2 * PATH_MAX];
    std::snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    if (ssize_t n = ::readlink(link, whole, PATH_MAX); n > 0) {
      std::snprintf(whole + n, sizeof whole - static_cast<size_t>(n), "/%s", path);
      return judge("remove", whole) == Verdict::fail ? -1 : real(folder, path, flags);
    }
  }
  return judge("remove", path) == Verdict::fail ? -1 : real(folder, path, flags);
}
SHIM int unlink(const char* path) noexcept {
  static auto real = next<int (*)(const char*)>("unlink");
  return judge("remove", path) == Verdict::fail ? -1 : real(path);
}
SHIM int rmdir(const char* path) noexcept {
  static auto real = next<int (*)(const char*)>("rmdir");
  return judge("remove", path) == Verdict::fail ? -1 : real(path);
}
SHIM int remove(const char* path) noexcept {
  static auto real = next<int (*)(const char*)>("remove");
  return judge("remove", path) == Verdict::fail ? -1 : real(path);
}

SHIM int open64(const char* path, int flags, ...) {
  static auto real = next<int (*)(const char*, int, ...)>("open64");
  va_list arguments;
  va_start(arguments, flags);
  mode_t mode = va_arg(arguments, mode_t);
  va_end(arguments);
  return creates(flags) && judge("open", path) == Verdict::fail ? -1 : real(path, flags, mode);
}
SHIM int open(const char* path, int flags, ...) {
  static auto real = next<int (*)(const char*, int, ...)>("open");
  va_list arguments;
  va_start(arguments, flags);
  mode_t mode = va_arg(arguments, mode_t);
  va_end(arguments);
  return creates(flags) && judge("open", path) == Verdict::fail ? -1 : real(path, flags, mode);
}
