#include "sdk/kit/conformance/training_library.h"

#include <dlfcn.h>

#include <filesystem>

#include "sdk/base/beside.h"

namespace meshwright::conformance {

void* symbol_of_training(const char* name, Report& report) {
  const std::filesystem::path path = beside_sdk("libmeshwright_conformance_training.so");
  auto failed = [&](const std::string& what) -> void* {
    report.fail(what);
    return nullptr;
  };
  if (!std::filesystem::exists(path)) {
    report.skip("it can run, but " + path.string() + ", which would check that, is not there");
    return nullptr;
  }
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return failed("cannot load " + path.string() + ": " + (why ? why : ""));
  }
  void* symbol = ::dlsym(library, name);
  return symbol != nullptr ? symbol : failed(path.string() + " is not the kit's library");
}

}  // namespace meshwright::conformance
