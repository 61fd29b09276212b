#include "sdk/base/files/temporary_folder.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace fs = std::filesystem;
using meshwright::base::TemporaryFolder;

namespace {

// Makes one in a process that then stands still, ends that process, and returns the folder.
fs::path folder_of_killed(int signal) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(signal, SIG_DFL);  // not doctest's handler
    const TemporaryFolder folder("meshwright_test");
    std::ofstream(folder.path() / "kept") << "something";
    const std::string name = folder.path().string();
    if (::write(ends[1], name.data(), name.size()) < 0) ::_exit(1);
    for (;;) ::pause();
  }
  char name[4096];
  const ssize_t size = ::read(ends[0], name, sizeof name);
  REQUIRE(size > 0);
  ::close(ends[0]);
  ::close(ends[1]);
  const fs::path out(std::string(name, static_cast<size_t>(size)));
  CHECK(fs::exists(out / "kept"));
  ::kill(child, signal);
  ::waitpid(child, nullptr, 0);
  return out;
}

bool goes_away(const fs::path& path) {
  for (int tries = 0; tries < 500 && fs::exists(path); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return !fs::exists(path);
}

}  // namespace

TEST_CASE("a temporary folder goes with its object, and so does what watches over it") {
  fs::path path;
  {
    const TemporaryFolder folder("meshwright_test");
    path = folder.path();
    CHECK(folder.why().empty());
    CHECK(path.filename().string().starts_with("meshwright_test."));
    fs::create_directories(path / "a" / "b");
  }
  CHECK_FALSE(fs::exists(path));
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);  // no child is left
}

TEST_CASE("a temporary folder goes when its process is killed") {
  for (const int signal : {SIGTERM, SIGINT, SIGKILL}) {
    CAPTURE(signal);
    CHECK(goes_away(folder_of_killed(signal)));
  }
}

TEST_CASE("where no temporary folder can be made, it says why") {
  const char* before = std::getenv("TMPDIR");
  const std::string kept = before != nullptr ? before : "";
  ::setenv("TMPDIR", "/no/such/place", 1);
  const TemporaryFolder folder("meshwright_test");
  if (before != nullptr)
    ::setenv("TMPDIR", kept.c_str(), 1);
  else
    ::unsetenv("TMPDIR");
  CHECK(folder.path().empty());
  CHECK(folder.why().find("TMPDIR") != std::string::npos);
}
