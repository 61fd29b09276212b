// A folder for files that nobody needs after it, where temporary files go (TMPDIR).
//
//   const TemporaryFolder folder("meshwright_prove");
//   if (folder.path().empty()) report(folder.why());
//
// It goes with the object, and also where the process ends by a signal, even by SIGKILL: a shell of
// its own waits for that end.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

namespace meshwright::base {

class TemporaryFolder {
 public:
  // Its name begins with `name`.
  explicit TemporaryFolder(const std::string& name);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }  // empty: there is none
  const std::string& why() const { return why_; }              // there is none

 private:
  void watch();
  std::filesystem::path path_;
  std::string why_;
  pid_t watcher_ = -1;  // the shell; -1: there is none, and a killed process leaves the folder
  int alive_ = -1;      // closed with this process; what is written ends the shell without work
};

}  // namespace meshwright::base
