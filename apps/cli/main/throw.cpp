// Every exception of the process begins here: the dynamic linker finds the program's __cxa_throw
// before that of the C++ library, which does the rest. A sanitizer has one of its own.
#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#include <typeinfo>

#include "meshwright/error.h"
#include "sdk/base/plugin_at_work.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

extern "C" __attribute__((visibility("default"), noreturn)) void abi::__cxa_throw(
    void* object, std::type_info* type, void (*destroy)(void*)) {
  // An Error says whose it is.
  if (*type != typeid(meshwright::Error)) meshwright::detail::exception_begins(object);
  using Throw = void (*)(void*, std::type_info*, void (*)(void*));
  static const auto rest = reinterpret_cast<Throw>(::dlsym(RTLD_NEXT, "__cxa_throw"));
  rest(object, type, destroy);
  std::abort();
}

#endif
