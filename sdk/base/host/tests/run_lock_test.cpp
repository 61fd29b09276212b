// Who gets a run folder: the living keep it, the dead lose it.
#include "sdk/base/host/run_lock.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <ctime>

#include "sdk/base/tests/scratch.h"

namespace run_lock_test {

using namespace meshwright;
using base::LockOwner;
using base::RunLock;
namespace fs = std::filesystem;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

struct Folder : scratch::Folder {
  fs::path lock() const { return path / "lock"; }
  void leave(const LockOwner& owner, int64_t seconds_ago = 0) const {
    put("lock", base::lock_text(owner));
    timespec times[2] = {{std::time(nullptr) - seconds_ago, 0},
                         {std::time(nullptr) - seconds_ago, 0}};
    ::utimensat(AT_FDCWD, lock().c_str(), times, 0);
  }
};

RunLock::Settings quick(bool kernel_locks) {
  RunLock::Settings settings;
  settings.heartbeat = milliseconds(200);
  settings.silence = milliseconds(3000);
  settings.kernel_locks = kernel_locks;
  return settings;
}

enum class Child : uint8_t {
  none,
  forked,     // by fork(), which does not take the lock along
  inheriting  // as a rank does
};

// A process that holds the lock until it is killed; with a child of its own, when asked.
struct Holder {
  pid_t pid = -1, child = -1;
  explicit Holder(const fs::path& folder, Child wanted = Child::none,
                  RunLock::Settings settings = {}) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    pid = ::fork();
    if (pid == 0) {
      settings.self.pid = ::getpid();
      settings.self.start_time = base::this_process().start_time;
      RunLock lock(folder, std::move(settings));
      pid_t inner = wanted == Child::forked       ? ::fork()
                    : wanted == Child::inheriting ? static_cast<pid_t>(::syscall(SYS_fork))
                                                  : -1;
      if (inner != 0 && ::write(ends[1], &inner, sizeof inner) < 0) ::_exit(1);
      for (;;) ::pause();
    }
    REQUIRE(::read(ends[0], &child, sizeof child) == sizeof child);
    ::close(ends[0]);
    ::close(ends[1]);
  }
  void kill() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    pid = -1;
  }
  ~Holder() {
    if (pid > 0) kill();
    if (child > 0) ::kill(child, SIGKILL);
  }
};

Error refused(const fs::path& folder, RunLock::Settings settings = {}) {
  const Error error = scratch::caught([&] { RunLock lock(folder, std::move(settings)); });
  REQUIRE_MESSAGE(!error.message().empty(), "it was given the lock");
  return error;
}

std::string all_of(const Error& error) {
  std::string out = error.message();
  for (const std::string& help : error.helps()) out += "\n" + help;
  return out;
}

}  // namespace

TEST_CASE("the owner of a lock is written down and read back, and a half-written one is none") {
  LockOwner owner = base::this_process();
  CHECK(owner.pid == ::getpid());
  CHECK(owner.start_time > 0);
  CHECK(!owner.boot.empty());
  std::string text = base::lock_text(owner);
  CHECK(base::parse_lock(text) == owner);
  for (size_t cut = 0; cut + 1 < text.size(); ++cut) CHECK(!base::parse_lock(text.substr(0, cut)));
}

TEST_CASE(
    "a folder that is held is refused with host, process and what to do; given back, it leaves no "
    "file") {
  for (bool kernel_locks : {true, false}) {
    CAPTURE(kernel_locks);
    Folder folder;
    Holder holder(folder.path);
    Error error = refused(folder.path, quick(kernel_locks));
    CHECK(error.code() == ErrorCode::run_folder_locked);
    std::string text = all_of(error), pid = std::to_string(holder.pid);
    for (const std::string& part :
         {folder.path.string(), "process " + pid + " on " + base::this_process().host, "-p " + pid,
          std::string("set run.name"), "kill " + pid})
      CHECK_MESSAGE(text.find(part) != std::string::npos, text);
    CHECK(base::parse_lock(folder.read("lock"))->pid == holder.pid);
  }
  Folder folder;
  {
    RunLock lock(folder.path);
    CHECK(!lock.former());
    CHECK(refused(folder.path).code() == ErrorCode::run_folder_locked);
    CHECK(fs::exists(folder.lock()));
  }
  CHECK(fs::is_empty(folder.path));
  RunLock again(folder.path);
  CHECK(!again.former());
}

TEST_CASE("the lock of a process that was killed is taken over at once, and who it was is known") {
  for (bool kernel_locks : {true, false}) {
    Folder folder;
    Holder holder(folder.path);
    pid_t pid = holder.pid;
    holder.kill();
    CHECK(fs::exists(folder.lock()));
    auto begin = Clock::now();
    RunLock lock(folder.path, quick(kernel_locks));
    CHECK(Clock::now() - begin < std::chrono::seconds(2));
    REQUIRE(lock.former());
    CHECK(lock.former()->pid == pid);
  }
}

TEST_CASE(
    "a killed owner's children by fork() do not hold its lock; what has inherited it is waited "
    "for, "
    "for a moment") {
  auto taken_after = [](Child child, milliseconds moment) {
    Folder folder;
    Holder holder(folder.path, child);
    holder.kill();
    RunLock::Settings settings;
    settings.moment = moment;
    const auto begin = Clock::now();
    RunLock lock(folder.path, settings);
    CHECK(lock.former());
    // Also against a third, though the kernel still knows the child.
    CHECK(refused(folder.path).code() == ErrorCode::run_folder_locked);
    return Clock::now() - begin;
  };
  CHECK(taken_after(Child::forked, std::chrono::seconds(60)) < std::chrono::seconds(30));
  CHECK(taken_after(Child::inheriting, milliseconds(200)) >= milliseconds(200));
}

TEST_CASE("a copy of a folder that is held is not: its lock is another file") {
  for (bool kernel_locks : {true, false}) {
    Folder folder;
    const fs::path copy = folder.path / "copy", original = folder.path / "original";
    Holder holder(original);
    fs::copy(original, copy, fs::copy_options::recursive);
    CHECK(!base::owner_of(copy));
    CHECK(base::owner_of(original)->pid == holder.pid);
    RunLock lock(copy, quick(kernel_locks));
    CHECK(!lock.former());  // nobody's run has died
    CHECK(refused(original).code() == ErrorCode::run_folder_locked);
  }
}

TEST_CASE(
    "without /proc a dead owner is not taken as alive, and no help ends a process that may be "
    "another") {
  auto blind = [](LockOwner owner) {
    owner.boot = owner.pid_space = "";
    owner.start_time = 0;
    return owner;
  };
  LockOwner dead = blind(base::this_process());  // the number lives
  for (bool kernel_locks : {true, false}) {
    CAPTURE(kernel_locks);
    Folder folder;
    folder.leave(dead, kernel_locks ? 0 : 100);
    RunLock::Settings settings = quick(kernel_locks);
    settings.self = blind(settings.self);
    settings.self.since = "now";
    RunLock lock(folder.path, settings);
    CHECK(lock.former() == dead);
  }
  // In a container of its own.
  RunLock::Settings elsewhere = quick(true);
  elsewhere.self.pid_space = "pid:[1]";
  Folder folder;
  Holder holder(folder.path, Child::none, elsewhere);
  const std::string text = all_of(refused(folder.path, quick(true)));
  CHECK_MESSAGE(text.find("kill") == std::string::npos, text);
  CHECK(text.find("set run.name") != std::string::npos);
}

TEST_CASE(
    "owners that are dead: a number that nobody has, one that another process has now, a host that "
    "is silent") {
  LockOwner self = base::this_process();
  LockOwner reused = self, gone = self, silent = self;
  reused.start_time += 1;
  gone.pid = 0x3fffff;  // above what the kernel gives out
  silent.boot = "another";
  silent.host = "faraway";
  struct Row {
    const char* what;
    LockOwner owner;
    int64_t seconds_ago;
  };
  for (const Row& row :
       {Row{"reused", reused, 0}, Row{"gone", gone, 0}, Row{"silent", silent, 100}})
    for (bool kernel_locks : {true, false}) {
      CAPTURE(row.what);
      CAPTURE(kernel_locks);
      Folder folder;
      folder.leave(row.owner, row.seconds_ago);
      auto begin = Clock::now();
      RunLock lock(folder.path, quick(kernel_locks));
      CHECK(Clock::now() - begin < std::chrono::seconds(2));
      CHECK(lock.former() == row.owner);
    }
  // Fresh when it is found, and then silent: the wait is said, and ends.
  Folder folder;
  folder.leave(silent);
  std::string said;
  RunLock::Settings settings = quick(true);
  settings.silence = milliseconds(1000);
  settings.waiting = [&](const std::string& text) { said = text; };
  RunLock lock(folder.path, settings);
  CHECK(lock.former() == silent);
  CHECK(said.find("faraway") != std::string::npos);
}

TEST_CASE(
    "an owner on another host that is alive is found alive long before it could count as dead") {
  for (bool kernel_locks : {true, false}) {
    Folder folder;
    LockOwner other = base::this_process();
    other.boot = "another";
    other.host = "faraway";
    folder.leave(other);
    std::atomic<bool> ending = false;
    std::thread beats([&] {
      while (!ending) {
        ::utimensat(AT_FDCWD, folder.lock().c_str(), nullptr, 0);
        std::this_thread::sleep_for(milliseconds(100));
      }
    });
    RunLock::Settings settings = quick(kernel_locks);
    settings.silence = std::chrono::seconds(60);
    auto begin = Clock::now();
    Error error = refused(folder.path, settings);
    CHECK(Clock::now() - begin < std::chrono::seconds(20));
    CHECK(error.code() == ErrorCode::run_folder_locked);
    CHECK(all_of(error).find("on faraway") != std::string::npos);
    CHECK(all_of(error).find("kill ") == std::string::npos);
    ending = true;
    beats.join();
    CHECK(fs::exists(folder.lock()));
  }
}

TEST_CASE("the holder renews its lock, and hears when another host has taken it over") {
  Folder folder;
  std::atomic<bool> lost = false;
  std::string words;
  RunLock::Settings settings = quick(true);
  settings.lost = [&](const Error& error) {
    words = all_of(error);
    lost = true;
  };
  RunLock lock(folder.path, settings);
  auto changed = [&] {
    struct stat status{};
    ::stat(folder.lock().c_str(), &status);
    return std::pair(status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  };
  auto first = changed();
  for (int i = 0; i < 500 && changed() == first; ++i) std::this_thread::sleep_for(milliseconds(10));
  CHECK(changed() > first);
  CHECK(!lost);
  LockOwner other = base::this_process();
  other.boot = "another";
  other.host = "faraway";
  folder.leave(other);
  for (int i = 0; i < 500 && !lost; ++i) std::this_thread::sleep_for(milliseconds(10));
  REQUIRE(lost);
  CHECK(words.find("on faraway") != std::string::npos);
}

TEST_CASE("a lock that is removed with its folder is made again once the folder is there") {
  for (bool kernel_locks : {true, false}) {
    Folder folder;
    const fs::path run = folder.path / "run";
    std::optional<RunLock> lock(std::in_place, run, quick(kernel_locks));
    fs::remove_all(run);
    std::this_thread::sleep_for(milliseconds(300));  // longer than a heartbeat: nowhere to make it
    CHECK(!fs::exists(run));
    fs::create_directories(run);
    for (int i = 0; i < 500 && !base::owner_of(run); ++i)
      std::this_thread::sleep_for(milliseconds(10));
    CHECK(refused(run, quick(kernel_locks)).code() == ErrorCode::run_folder_locked);
    lock.reset();
    CHECK(!fs::exists(run / "lock"));
  }
}

TEST_CASE("what killed processes left in the middle of a file is gone with the next run") {
  Folder folder;
  for (const char* name : {".lock.host.17", ".env.json.0123.tmp", ".plan.json.4567.tmp", "notes"})
    folder.put(name, "x");
  const timespec old[2] = {{std::time(nullptr) - 100, 0}, {std::time(nullptr) - 100, 0}};
  ::utimensat(AT_FDCWD, (folder.path / ".env.json.0123.tmp").c_str(), old, 0);
  ::utimensat(AT_FDCWD, (folder.path / "notes").c_str(), old, 0);
  RunLock lock(folder.path);
  CHECK(!fs::exists(folder.path / ".lock.host.17"));
  CHECK(!fs::exists(folder.path / ".env.json.0123.tmp"));
  CHECK(fs::exists(folder.path / ".plan.json.4567.tmp"));  // somebody may be at it
  CHECK(fs::exists(folder.path / "notes"));
}

TEST_CASE("a folder that cannot be written to is told as that") {
  if (::geteuid() == 0) {
    // Root may write everywhere but where a file stands in the way.
    Folder folder;
    folder.put("file", "x");
    CHECK_THROWS_AS(RunLock(folder.path / "file" / "run"), Error);
    return;
  }
  Folder folder;
  fs::permissions(folder.path, fs::perms::owner_read | fs::perms::owner_exec);
  CHECK(refused(folder.path).code() == ErrorCode::output_unwritable);
  fs::permissions(folder.path, fs::perms::owner_all);
}

}  // namespace run_lock_test
