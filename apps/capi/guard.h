// What every function of the C interface does around its work: nothing leaves it but a status.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/error.h"

namespace meshwright::capi {

// Several mistakes at once, as a configuration has them.
struct Mistakes {
  std::vector<Error> errors;
};

// Does the work; what it throws (Error, Mistakes, anything) becomes this thread's error. Returns
// the status of meshwright.h.
int guarded(const std::function<void()>& work) noexcept;

// A wrong use of the interface.
Error misuse(const std::string& message);
template <class T>
T& needed(T* argument, const char* name) {
  if (argument == nullptr) throw misuse(std::string(name) + " is NULL");
  return *argument;
}
std::vector<std::string> texts(const char* const* list, size_t count, const char* name);

// Loading plugins and planning share state that no lock guards.
std::mutex& planning();

// The caller's struct as this library knows it: members that the caller does not have are those of
// `out`, which this function has filled before. `least`: the size of the first release.
template <class T>
T read_struct(const T* from, const T& defaults, size_t least, const char* name) {
  T out = defaults;
  if (from == nullptr) return out;
  if (from->size < least)
    throw misuse(std::string(name) + ".size is " + std::to_string(from->size) +
                 ", not the sizeof of " + name);
  const char* bytes = reinterpret_cast<const char*>(from);
  for (size_t at = sizeof(T); at < from->size; ++at)
    if (bytes[at] != 0)
      throw misuse(std::string(name) + " has members that this release does not know");
  std::memcpy(&out, from, std::min(from->size, sizeof(T)));
  out.size = sizeof(T);
  return out;
}

}  // namespace meshwright::capi
