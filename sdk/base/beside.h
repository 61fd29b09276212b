// Where the libraries lie that are loaded only when they are needed: beside the SDK's own.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <filesystem>
#include <system_error>
#include <thread>
#include <vector>

#include "meshwright/error.h"

namespace meshwright {

// The path of library `file` in the folder of the SDK library, whether it exists or not. Throws
// Error(internal) when that folder is not to be found.
inline std::filesystem::path beside_sdk(const char* file) {
  Dl_info sdk{};
  if (::dladdr(reinterpret_cast<const void*>(&error_catalog), &sdk) == 0)
    throw Error(ErrorCode::internal, "the SDK library cannot be located");
  return std::filesystem::path(sdk.dli_fname).parent_path() / file;
}

namespace detail {

// Threads that only make things faster. Not public, and all inline.

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

}  // namespace detail

}  // namespace meshwright
