#include "engine/launch/run_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "engine/launch/supervisor.h"
#include "sdk/base/files/durable.h"

namespace meshwright::launch {

namespace {

// Ranks of a launcher die with it, and nothing more is written.
[[noreturn]] void leave(const Error& error) {
  std::string text = std::string(error.what()) + "\n";
  for (const std::string& note : error.notes()) text += "  note: " + note + "\n";
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) ::_exit(exit_status(error.code()));
  ::_exit(exit_status(error.code()));
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

}  // namespace

std::unique_ptr<base::RunLock> own_run_folder(const std::filesystem::path& folder,
                                              const Lookup& environment, const Say& waiting,
                                              const std::function<void(const Error&)>& lost) {
  base::RunLock::Settings settings;
  settings.waiting = waiting;
  settings.lost = lost ? lost : leave;
  try {
    auto lock = std::make_unique<base::RunLock>(folder, settings);
    if (const std::optional<base::LockOwner>& former = lock->former())
      base::append_line(folder / "run.log",
                        "the run before, process " + std::to_string(former->pid) + " on " +
                            former->host + " since " + former->since +
                            ", ended without a word: it was killed, or its host went down");
    return lock;
  } catch (const Error& error) {
    std::vector<std::string> variables = unrecognised_launcher(environment);
    if (error.code() != ErrorCode::run_folder_locked || variables.empty()) throw;
    throw Error(ErrorCode::unknown_launcher,
                "the environment looks like that of a launcher which is not recognised (" +
                    joined(variables) + "), so each process trains alone; " + error.message())
        .key("run.name")
        .help(kSetRankVariables)
        .help("if this is to be a run of its own, set run.name to another name");
  }
}

bool launcher_owns_run_folder(const std::filesystem::path& folder) {
  const char* lock = std::getenv(kRunLock);
  struct stat held{}, named{};
  return lock != nullptr && ::fstat(std::atoi(lock), &held) == 0 &&
         ::stat((folder / "lock").c_str(), &named) == 0 && held.st_ino == named.st_ino &&
         held.st_dev == named.st_dev;
}

}  // namespace meshwright::launch
