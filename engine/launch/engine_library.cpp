#include "engine/launch/engine_library.h"

#include <dlfcn.h>

#include <string>

#include "meshwright/error.h"
#include "sdk/base/beside.h"

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

void* engine_function(const char* name) {
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
