#include "engine/launch/engine_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "meshwright/error.h"
#include "sdk/base/beside.h"
#include "sdk/base/used_up.h"

namespace meshwright::launch {

namespace {

// The dynamic linker names the first library that it missed.
Error cannot_load(const std::string& path, const std::string& why) {
  const bool no_torch = why.starts_with("libtorch") || why.starts_with("libc10");
  if (!no_torch)
    return Error(ErrorCode::internal, "cannot load " + path + ": " + why)
        .help("the installation is damaged: build or install again");
  const std::string place = beside_sdk("meshwright/torch").lexically_normal().string();
  return Error(ErrorCode::file_unreadable, "LibTorch is not found: " + why)
      .help("ln -s <the torch folder of the LibTorch wheel> " + place)
      .help("or name its lib folder in LD_LIBRARY_PATH");
}

}  // namespace

void check_current_folder() {
  std::error_code failed;
  static_cast<void>(std::filesystem::current_path(failed));
  if (!failed) return;
  throw Error(ErrorCode::file_unreadable,
              "the current folder is gone, or no path leads to it any more: " + failed.message())
      .help("cd to a folder that is there, and start again: relative paths begin at it")
      .help("`cd \"$PWD\"` enters a folder that was made again under the same name");
}

void* engine_function(const char* name) {
  check_current_folder();
  detail::check_room_for_libtorch();
  const std::string path = beside_sdk("libmeshwright_engine.so.1").string();
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* told = ::dlerror();
    throw cannot_load(path, told ? told : "");
  }
  void* function = ::dlsym(library, name);
  if (function == nullptr) throw Error(ErrorCode::internal, path + " is not the engine's library");
  return function;
}

}  // namespace meshwright::launch
