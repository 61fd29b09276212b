#include "temporary_folder.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "durable.h"

extern char** environ;

namespace meshwright::base {

TemporaryFolder::TemporaryFolder(const std::string& name) {
  std::error_code none;
  const std::filesystem::path place = std::filesystem::temp_directory_path(none);
  std::string made = (place / (name + ".XXXXXX")).string();
  if (none || ::mkdtemp(made.data()) == nullptr) {
    why_ = "no folder can be made where temporary files go (TMPDIR): " +
           (none ? none.message() : place.string() + ": " + std::strerror(errno));
    return;
  }
  path_ = made;
  watch();
}

void TemporaryFolder::watch() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  // Twice, because ranks of the process may end, and write, a little after it. Signals that go to
  // all processes of a job do not end it.
  std::string script =
      "trap '' HUP INT TERM; read -r _ && exit; rm -rf -- \"$0\"; sleep 1; rm -rf -- \"$0\"";
  std::string shell = "/bin/sh", flag = "-c", folder = path_.string();
  char* const words[] = {shell.data(), flag.data(), script.data(), folder.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_adddup2(&actions, ends[0], 0);
  // Whoever reads what the process prints must not wait for the shell.
  ::posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  if (::posix_spawn(&watcher_, shell.c_str(), &actions, &attributes, words, environ) == 0)
    alive_ = ends[1];
  else
    watcher_ = -1;
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  ::close(ends[0]);
  if (alive_ < 0) ::close(ends[1]);
}

TemporaryFolder::~TemporaryFolder() {
  if (!path_.empty()) remove_tree(path_);
  if (watcher_ < 0) return;
  const bool told = ::write(alive_, "\n", 1) == 1;
  ::close(alive_);
  if (told) ::waitpid(watcher_, nullptr, 0);
}

}  // namespace meshwright::base
