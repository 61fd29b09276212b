// Which ranks of a test are on one host, while it lives. Not while ranks run.
#pragma once

#include <cstdlib>

#include "shared_memory_switch.h"

namespace meshwright::testing {

class PretendedHosts {
 public:
  // A number for each rank: "0,0,1,1".
  explicit PretendedHosts(const char* hosts) { ::setenv(kHosts, hosts, 1); }
  ~PretendedHosts() { ::unsetenv(kHosts); }
  PretendedHosts(const PretendedHosts&) = delete;
  PretendedHosts& operator=(const PretendedHosts&) = delete;

 private:
  static constexpr const char* kHosts = "MESHWRIGHT_HOSTS";
  SharedMemory shared_{true};
};

}  // namespace meshwright::testing
