// Where the libraries lie that are loaded only when they are needed: beside the SDK's own.
#pragma once

#include <dlfcn.h>

#include <filesystem>

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

}  // namespace meshwright
