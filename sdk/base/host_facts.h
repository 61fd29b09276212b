// What this host and this program are called.
#pragma once

#include <sys/auxv.h>
#include <unistd.h>

#include <bit>
#include <filesystem>
#include <string>
#include <system_error>

namespace meshwright {

inline std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

// The file that this process runs; where /proc is not mounted, as it was started.
inline std::filesystem::path program_path() {
  std::error_code failed;
  std::filesystem::path found = std::filesystem::read_symlink("/proc/self/exe", failed);
  if (!failed) return found;
  const auto* started = std::bit_cast<const char*>(::getauxval(AT_EXECFN));
  return std::filesystem::absolute(started != nullptr ? started : "meshwright", failed);
}

}  // namespace meshwright
