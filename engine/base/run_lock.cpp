#include "engine/base/run_lock.h"
#include "sdk/files/clock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <sstream>
#include <utility>

#include "sdk/files/durable.h"
#include "sdk/files/read_file.h"

namespace meshwright::base {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using Clock = std::chrono::steady_clock;

namespace {

// When a process of this host was started, in ticks since the boot; 0 when there is none, or only
// what its parent has yet to collect.
int64_t start_time_of(int64_t pid) {
  std::string text = read_file("/proc/" + std::to_string(pid) + "/stat");
  size_t name_end = text.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string state, field;
  fields >> state;
  if (state == "Z" || state == "X") return 0;
  for (int i = 4; i <= 22; ++i) fields >> field;
  return std::atoll(field.c_str());
}

nanoseconds changed_at(const struct stat& status) {
  return std::chrono::seconds(status.st_mtim.tv_sec) + nanoseconds(status.st_mtim.tv_nsec);
}

std::string seconds_text(milliseconds time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
}

}  // namespace

LockOwner this_process() {
  LockOwner out;
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  out.host = host;
  out.boot = read_file("/proc/sys/kernel/random/boot_id");
  while (!out.boot.empty() && out.boot.back() == '\n') out.boot.pop_back();
  std::error_code failed;
  out.pid_space = fs::read_symlink("/proc/self/ns/pid", failed).string();
  out.pid = ::getpid();
  out.start_time = start_time_of(out.pid);
  out.since = utc_now();
  return out;
}

std::string lock_text(const LockOwner& owner) {
  return "host " + owner.host + "\npid " + std::to_string(owner.pid) + "\nsince " + owner.since +
         "\nboot " + owner.boot + "\npid_space " + owner.pid_space + "\nstart_time " +
         std::to_string(owner.start_time) + "\nend\n";
}

std::optional<LockOwner> parse_lock(const std::string& text) {
  LockOwner out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line == "end") return out.host.empty() || out.pid <= 0 ? std::nullopt : std::optional(out);
    size_t space = line.find(' ');
    if (space == std::string::npos) return std::nullopt;
    std::string name = line.substr(0, space), value = line.substr(space + 1);
    if (name == "host") out.host = value;
    if (name == "boot") out.boot = value;
    if (name == "pid_space") out.pid_space = value;
    if (name == "pid") out.pid = std::atoll(value.c_str());
    if (name == "start_time") out.start_time = std::atoll(value.c_str());
    if (name == "since") out.since = value;
  }
  return std::nullopt;
}

RunLock::RunLock(const fs::path& folder, Settings settings)
    : folder_(folder), path_(folder / "lock"), settings_(std::move(settings)) {
  std::error_code failed;
  fs::create_directories(folder_, failed);
  if (failed) throw unwritable(folder_, failed.value(), "make").key("run.dir");
  // The file that was opened may be removed by its owner before it is locked; then it is nobody's,
  // and there is a new one.
  while (!try_to_take()) {
  }
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the other threads
  thread_ = std::thread([this] { keep_alive(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

RunLock::~RunLock() {
  {
    std::lock_guard guard(mutex_);
    ending_ = true;
  }
  woken_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (read() == settings_.self) ::unlink(path_.c_str());
  ::close(fd_);
}

std::optional<LockOwner> RunLock::read() const { return parse_lock(read_file(path_)); }

void RunLock::write() {
  std::string text = lock_text(settings_.self);
  bool whole = ::ftruncate(fd_, 0) == 0 &&
               ::pwrite(fd_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  if (whole && ::fsync(fd_) == 0) return;
  throw unwritable(path_, errno == 0 ? ENOSPC : errno).key("run.dir");
}

// The file at `path_` is still the one that is open.
bool RunLock::is_named() const {
  struct stat ours{}, named{};
  return ::fstat(fd_, &ours) == 0 && ::stat(path_.c_str(), &named) == 0 &&
         ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
}

// Asks the kernel. False: this file system has no such locks, or its server keeps the one of a host
// that is dead.
bool RunLock::lock_in_kernel() {
  // A killed run's ranks may take a moment to die after their launcher, and an owner one to write
  // its name.
  constexpr milliseconds kMoment = std::chrono::seconds(10), kPause(50);
  for (auto end = Clock::now() + kMoment;;) {
    if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return true;
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return false;
    std::optional<LockOwner> owner = read();
    bool alive = owner.has_value();
    if (owner && owner->boot != settings_.self.boot) {
      if (falls_silent(*owner)) return false;
      alive = read() == owner;
    } else if (owner && owner->pid_space == settings_.self.pid_space) {
      alive = start_time_of(owner->pid) == owner->start_time;
    }
    if (alive || Clock::now() >= end) throw taken_by(owner);
    std::this_thread::sleep_for(kPause);
  }
}

// False: try again. The descriptor lies above those that a child process is given by number.
bool RunLock::try_to_take() {
  struct Closing {
    int& fd;
    bool kept = false;
    ~Closing() {
      if (!kept && fd >= 0) ::close(std::exchange(fd, -1));
    }
  } closing{fd_};
  int low = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (low < 0) throw unwritable(path_, errno, "open").key("run.dir");
  fd_ = ::fcntl(low, F_DUPFD_CLOEXEC, 10);
  int reason = errno;
  ::close(low);
  if (fd_ < 0) throw unwritable(path_, reason, "open").key("run.dir");
  bool locked = settings_.kernel_locks && lock_in_kernel();
  if (!is_named()) return false;
  if (std::optional<LockOwner> owner = read()) {
    bool dead = is_dead(*owner, locked);
    if (!is_named() || read() != owner) return false;  // given back, or taken over by somebody else
    if (!dead) throw taken_by(owner);
    former_ = owner;
  }
  write();
  if (!locked) {
    // Whoever wrote last has it.
    std::this_thread::sleep_for(milliseconds(300));
    if (std::optional<LockOwner> now = read(); now != settings_.self) throw taken_by(now);
  }
  closing.kept = true;
  return true;
}

// `locked`: the kernel says that no process of this machine has it any more.
bool RunLock::is_dead(const LockOwner& owner, bool locked) {
  if (owner.boot == settings_.self.boot) {
    if (owner.pid_space == settings_.self.pid_space)
      return start_time_of(owner.pid) != owner.start_time;
    if (locked) return true;
  }
  return falls_silent(owner);
}

// The clocks of two hosts differ, so times of change are compared with the time that the folder's
// own server gives a new file.
nanoseconds RunLock::clock_of_folder() const {
  fs::path probe =
      folder_ / (".lock." + settings_.self.host + "." + std::to_string(settings_.self.pid));
  ::unlink(probe.c_str());
  int fd = ::open(probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  struct stat status{};
  bool known = fd >= 0 && ::fstat(fd, &status) == 0;
  int reason = errno;
  if (fd >= 0) ::close(fd);
  ::unlink(probe.c_str());
  if (!known) throw unwritable(probe, reason, "open").key("run.dir");
  return changed_at(status);
}

// Waits until the owner has renewed the lock or given it back (false), or has not done so for too
// long.
bool RunLock::falls_silent(const LockOwner& owner) {
  auto last_change = [&]() -> std::optional<nanoseconds> {
    // Opening the file makes a network file system ask its server.
    int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status{};
    bool known = fd >= 0 && ::fstat(fd, &status) == 0;
    if (fd >= 0) ::close(fd);
    return known ? std::optional(changed_at(status)) : std::nullopt;
  };
  std::optional<nanoseconds> first = last_change();
  auto begin = Clock::now();
  bool told = false;
  for (std::optional<nanoseconds> now = first; now && now == first; now = last_change()) {
    if (clock_of_folder() - *now >= settings_.silence || Clock::now() - begin >= settings_.silence)
      return true;
    if (!std::exchange(told, true) && settings_.waiting)
      settings_.waiting(folder_.string() + " belongs to process " + std::to_string(owner.pid) +
                        " on " + owner.host + ": waiting up to " + seconds_text(settings_.silence) +
                        " to see whether it is still alive");
    std::this_thread::sleep_for(settings_.heartbeat / 10);
  }
  return false;
}

void RunLock::keep_alive() {
  std::unique_lock guard(mutex_);
  while (!woken_.wait_for(guard, settings_.heartbeat, [this] { return ending_; })) {
    std::optional<LockOwner> owner = read();
    if (owner && *owner != settings_.self) {
      if (settings_.lost)
        settings_.lost(taken_by(owner).note("this process was silent for longer than " +
                                            seconds_text(settings_.silence) +
                                            ", so the other one took the folder over"));
      return;
    }
    ::futimens(fd_, nullptr);
  }
}

Error RunLock::taken_by(const std::optional<LockOwner>& owner) const {
  Error error(ErrorCode::run_folder_locked,
              folder_.string() + " belongs to another run" +
                  (owner ? ": process " + std::to_string(owner->pid) + " on " + owner->host +
                               " has had it since " + owner->since
                         : ", which has not written its name yet"));
  error.key("run.name").help("set run.name to another name to train beside it");
  if (owner)
    error.help("to see it: ps -o pid,lstart,args -p " + std::to_string(owner->pid) +
               (owner->host == settings_.self.host ? "" : "   on " + owner->host));
  return error.help("to end it with a checkpoint: kill " +
                    (owner ? std::to_string(owner->pid) : "PID") +
                    ", and the same command goes on from there");
}

}  // namespace meshwright::base
