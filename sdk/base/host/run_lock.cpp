#include "sdk/base/host/run_lock.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <sstream>
#include <utility>

#include "sdk/base/files/durable.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/host_facts.h"
#include "sdk/base/used_up.h"

namespace meshwright::base {

namespace {

// Read between fork() and exec, where nothing may be locked or allocated. A free place has 0.
std::array<std::atomic<int>, 16> g_closed_in_forks;

void in_the_child() {
  for (std::atomic<int>& fd : g_closed_in_forks)
    if (const int one = fd.exchange(0); one > 0) ::close(one);
}

}  // namespace

void close_in_forks(int fd) {
  [[maybe_unused]] static const int once = ::pthread_atfork(nullptr, nullptr, in_the_child);
  for (std::atomic<int>& place : g_closed_in_forks)
    if (int free = 0; place.compare_exchange_strong(free, fd)) return;
}

void let_go_in_forks(int fd) {
  for (std::atomic<int>& place : g_closed_in_forks)
    if (int mine = fd; place.compare_exchange_strong(mine, 0)) return;
}

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using Clock = std::chrono::steady_clock;

namespace {

// When a process of this host was started, in ticks since the boot; 0: it has ended, and its parent
// has yet to look. nullopt: this process cannot see it.
std::optional<int64_t> start_time_of(int64_t pid) {
  std::string text = read_file("/proc/" + std::to_string(pid) + "/stat");
  size_t name_end = text.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  std::string state, field;
  fields >> state;
  if (state == "Z" || state == "X") return 0;
  for (int i = 4; i <= 22; ++i) fields >> field;
  return std::atoll(field.c_str());
}

// Where /proc does not tell the kernels apart, the hosts' names do.
bool of_one_kernel(const LockOwner& one, const LockOwner& other) {
  return one.boot == other.boot && (!one.boot.empty() || one.host == other.host);
}

int64_t number_of(int fd) {
  struct stat status{};
  return ::fstat(fd, &status) == 0 ? static_cast<int64_t>(status.st_ino) : 0;
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
  out.host = host_name();
  out.boot = read_file("/proc/sys/kernel/random/boot_id");
  while (!out.boot.empty() && out.boot.back() == '\n') out.boot.pop_back();
  std::error_code failed;
  out.pid_space = fs::read_symlink("/proc/self/ns/pid", failed).string();
  out.pid = ::getpid();
  out.start_time = start_time_of(out.pid).value_or(0);
  out.since = utc_now();
  return out;
}

std::string lock_text(const LockOwner& owner) {
  return "host " + owner.host + "\npid " + std::to_string(owner.pid) + "\nsince " + owner.since +
         "\nboot " + owner.boot + "\npid_space " + owner.pid_space + "\nstart_time " +
         std::to_string(owner.start_time) + "\nfile " + std::to_string(owner.file) + "\nend\n";
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
    if (name == "file") out.file = std::atoll(value.c_str());
  }
  return std::nullopt;
}

Life life_of(const LockOwner& owner, const LockOwner& self) {
  if (!of_one_kernel(owner, self) || owner.pid_space.empty() || owner.pid_space != self.pid_space)
    return Life::unknown;
  if (::kill(static_cast<pid_t>(owner.pid), 0) != 0 && errno == ESRCH) return Life::dead;
  const std::optional<int64_t> started = start_time_of(owner.pid);
  if (!started || owner.start_time == 0) return Life::unknown;
  return *started == owner.start_time ? Life::alive : Life::dead;
}

std::optional<LockOwner> owner_of(const fs::path& folder) {
  const fs::path lock = folder / "lock";
  std::optional<LockOwner> owner = parse_lock(read_file(lock));
  struct stat status{};
  const LockOwner self = this_process();
  if (owner && of_one_kernel(*owner, self) &&
      (life_of(*owner, self) == Life::dead ||
       (owner->file != 0 && ::stat(lock.c_str(), &status) == 0 &&
        owner->file != static_cast<int64_t>(status.st_ino))))
    return std::nullopt;
  return owner;
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
  close_in_forks(fd_);
  sweep();
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the other threads
  thread_ = std::thread([this] { keep_alive(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

RunLock::~RunLock() {
  if (settings_.self.pid != ::getpid()) {  // a copy in a child, which has neither thread nor lock
    if (thread_.joinable()) thread_.detach();
    return;
  }
  {
    std::lock_guard guard(mutex_);
    ending_ = true;
  }
  woken_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (read() == settings_.self) ::unlink(path_.c_str());
  let_go_in_forks(fd_);
  ::close(fd_);
}

std::optional<LockOwner> RunLock::read() const { return parse_lock(read_file(path_, 1 << 16)); }

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

// The folder was copied together with the lock of a run of this kernel, which has the original.
bool RunLock::is_copied(const LockOwner& owner) const {
  return of_one_kernel(owner, settings_.self) && owner.file != 0 &&
         owner.file != settings_.self.file;
}

// Asks the kernel. False: this file system has no such locks, its server keeps the one of a host
// that is dead, or a process that a dead owner left behind has it.
bool RunLock::lock_in_kernel() {
  // A killed run's ranks may take a moment to die after their launcher, and an owner one to write
  // its name.
  constexpr milliseconds kPause(50);
  for (auto end = Clock::now() + settings_.moment;;) {
    if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return true;
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return false;
    const std::optional<LockOwner> owner = read();
    const Life life = owner ? life_of(*owner, settings_.self) : Life::dead;
    if (life == Life::alive && !is_copied(*owner)) throw taken_by(owner);
    if (life == Life::unknown) {
      if (heartbeat_stops(*owner)) return false;
      if (read() == owner) throw taken_by(owner);
    }
    if (Clock::now() >= end) {
      if (owner && life == Life::dead) return false;
      throw taken_by(owner);
    }
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
  int low = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (low < 0) throw unwritable(path_, errno, "open").key("run.dir");
  if (struct stat status{}; ::fstat(low, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(low);
    throw Error(ErrorCode::output_unwritable, path_.string() + " is not a regular file")
        .key("run.dir")
        .help("move it away: a run writes its own");
  }
  fd_ = ::fcntl(low, F_DUPFD_CLOEXEC, 10);
  const int reason = detail::reason_of_copy(errno);
  ::close(low);
  if (fd_ < 0) throw unwritable(path_, reason, "open").key("run.dir");
  settings_.self.file = number_of(fd_);
  bool locked = settings_.kernel_locks && lock_in_kernel();
  if (!is_named()) return false;
  if (std::optional<LockOwner> owner = read()) {
    bool dead = is_dead(*owner, locked);
    if (!is_named() || read() != owner) return false;  // given back, or taken over by somebody else
    if (!dead) throw taken_by(owner);
    if (!is_copied(*owner)) former_ = owner;
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
  if (is_copied(owner)) return true;
  if (const Life life = life_of(owner, settings_.self); life != Life::unknown)
    return life == Life::dead;
  return (locked && of_one_kernel(owner, settings_.self)) || heartbeat_stops(owner);
}

// What processes left that were killed in the middle of clock_of_folder(), of which one that is in
// it now misses nothing, and of write_durably(), which takes no minute.
void RunLock::sweep() const {
  struct stat now{};
  if (::fstat(fd_, &now) != 0) return;
  std::error_code failed;
  for (fs::directory_iterator at(folder_, failed), end; !failed && at != end;
       at.increment(failed)) {
    const std::string name = at->path().filename().string();
    struct stat left{};
    if (name.starts_with(".lock.") ||
        (name.starts_with('.') && name.ends_with(".tmp") &&
         ::lstat(at->path().c_str(), &left) == 0 && S_ISREG(left.st_mode) &&
         changed_at(left) + std::chrono::minutes(1) < changed_at(now)))
      ::unlink(at->path().c_str());
  }
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
bool RunLock::heartbeat_stops(const LockOwner& owner) {
  auto last_change = [&]() -> std::optional<nanoseconds> {
    // Opening the file makes a network file system ask its server.
    int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
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

// Of a folder that was removed and that the run makes again, of a lock that was cleared away, or of
// one whose text found no room.
void RunLock::make_again() {
  if (!is_named()) {
    const int fd = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) return;  // no folder, or somebody else's lock: the next look tells
    const bool taken =
        settings_.kernel_locks && ::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    const bool kept = !taken && ::dup3(fd, fd_, O_CLOEXEC) == fd_;
    ::close(fd);
    if (!kept) return;
    settings_.self.file = number_of(fd_);
  }
  try {
    write();
  } catch (const Error&) {
    return;  // tried again at the next look; the kernel's lock holds
  }
}

void RunLock::keep_alive() {
  std::unique_lock guard(mutex_);
  while (!woken_.wait_for(guard, settings_.heartbeat, [this] { return ending_; })) {
    std::optional<LockOwner> owner = read();
    if (owner && *owner != settings_.self) {
      if (settings_.lost)
        settings_.lost(taken_by(owner).note("this process was silent for longer than " +
                                            seconds_text(settings_.silence) +
                                            ", or its lock was removed, so the other one took the "
                                            "folder over"));
      return;
    }
    if (!owner) make_again();
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
  if (!owner) return error;
  const std::string pid = std::to_string(owner->pid), look = "ps -o pid,lstart,args -p " + pid;
  if (!of_one_kernel(*owner, settings_.self))
    return error.help("to see it, on " + owner->host + ": " + look)
        .help(
            "to end it with a checkpoint: Ctrl-C where it was started, and the same command goes "
            "on from there");
  if (life_of(*owner, settings_.self) != Life::alive)
    return error.help(
        "it is in another container of this host, or hidden from this process: end "
        "it where it was started, and the same command goes on from there");
  return error.help("to see it: " + look)
      .help("to end it with a checkpoint: kill " + pid +
            ", and the same command goes on from there");
}

}  // namespace meshwright::base
