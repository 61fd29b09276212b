// Threads that only make things faster. Not public, and all inline.
#pragma once

#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace meshwright::detail {

// Up to `wanted` threads that do the work of the caller's: fewer where the process may have no
// more. The vector's end waits for them.
template <class Work>
std::vector<std::jthread> helpers(size_t wanted, const Work& work) {
  std::vector<std::jthread> out;
  out.reserve(wanted);
  try {
    while (out.size() < wanted) out.emplace_back(work);
  } catch (const std::system_error&) {
  }
  return out;
}

}  // namespace meshwright::detail
