// Whether ranks of a test may use shared memory, while it lives. Not while ranks run.
#pragma once

#include <cstdlib>
#include <string>

namespace meshwright::testing {

// Which way messages go while it lives.
class SharedMemory {
 public:
  explicit SharedMemory(bool wanted) {
    if (const char* now = std::getenv(kName)) before_ = now;
    ::setenv(kName, wanted ? "1" : "0", 1);
  }
  ~SharedMemory() {
    if (before_.empty())
      ::unsetenv(kName);
    else
      ::setenv(kName, before_.c_str(), 1);
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

 private:
  static constexpr const char* kName = "MESHWRIGHT_SHARED_MEMORY";
  std::string before_;
};

}  // namespace meshwright::testing
