// Variables of the environment that a test sets, each for as long as its object lives. Not while
// ranks run.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace meshwright::testing {

class Variable {
 public:
  // nullptr: it is not set meanwhile.
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;  // NOLINT(concurrency-mt-unsafe)
    put(value);
  }
  ~Variable() { put(before_ ? before_->c_str() : nullptr); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void put(const char* value) const {
    value != nullptr ? ::setenv(name_, value, 1) : ::unsetenv(name_);
  }
  const char* name_;
  std::optional<std::string> before_;
};

// Whether ranks may use shared memory.
struct SharedMemory : Variable {
  explicit SharedMemory(bool wanted) : Variable("MESHWRIGHT_SHARED_MEMORY", wanted ? "1" : "0") {}
};

// Which ranks are on one host, by a number for each: "0,0,1,1". They may use shared memory.
class PretendedHosts {
 public:
  explicit PretendedHosts(const char* hosts) : hosts_("MESHWRIGHT_HOSTS", hosts) {}

 private:
  Variable hosts_;
  SharedMemory shared_{true};
};

}  // namespace meshwright::testing
