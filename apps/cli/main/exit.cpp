// exit() of a plugin, too, begins here: the dynamic linker finds the program's before that of the C
// library, which does the rest. Handlers of std::atexit run in reverse order, so that one of ours
// would come behind the destructors of libraries that other threads are in the middle of. A
// sanitizer has one of its own.
#include <dlfcn.h>

#include <cstdlib>

#include "sdk/base/plugin_at_work.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

extern "C" __attribute__((visibility("default"), noreturn)) void exit(int status) noexcept {
  meshwright::detail::exit_begins();
  using Exit = void (*)(int);
  static const auto rest = reinterpret_cast<Exit>(::dlsym(RTLD_NEXT, "exit"));
  rest(status);
  std::abort();
}

#endif
