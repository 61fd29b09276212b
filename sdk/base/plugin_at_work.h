// Whose code runs: what exits and crashes of the process are put down to. One state for the
// process, which the program and the engine's library share.
#pragma once

#include <cstdint>
#include <string>

#include "meshwright/export.h"

namespace meshwright::detail {

struct PluginCode;

// What is told of a plugin, "acme 1.0.0 (/opt/libmeshwright_acme.so)", kept for good. The same text
// gives the same object.
MESHWRIGHT_API const PluginCode* plugin_code(const std::string& told);
MESHWRIGHT_API const char* told(const PluginCode* plugin);
// Its instructions lie here, too. nullptr: the engine's own; what goes wrong there is not put down
// to the plugin that called.
MESHWRIGHT_API void plugin_has_code(const PluginCode* plugin, const void* begin, const void* end);

// While one of these lives, this thread runs code of that plugin, which does `doing`, a text that
// outlives it; nullptr: code of the engine that a plugin called.
class MESHWRIGHT_API PluginCall {
 public:
  PluginCall(const PluginCode* plugin, const char* doing) noexcept;
  ~PluginCall();
  PluginCall(const PluginCall&) = delete;
  PluginCall& operator=(const PluginCall&) = delete;

 private:
  const PluginCode* plugin_;  // before
  const char* doing_;
};

// The program or library that this address lies in is the engine's own.
MESHWRIGHT_API void engine_has_code_at(const void* inside);

// An exception begins here, on this thread: the program's __cxa_throw says so. What a plugin's hook
// of a module or of autograd throws passes through LibTorch's code, where nothing tells whose it
// was.
MESHWRIGHT_API void exception_begins(const void* object) noexcept;
// The plugin whose code threw this object, the address of the whole one; nullptr: none that is
// known.
MESHWRIGHT_API const PluginCode* thrower_of(const void* object) noexcept;

// exit() begins, on this thread: the program's own says so, before anything that other threads
// still use is taken down. Does not come back where PluginWatch says so.
MESHWRIGHT_API void exit_begins() noexcept;

MESHWRIGHT_API void this_is_rank(int64_t rank);
// ", on rank 1"; empty before the rank is known.
MESHWRIGHT_API std::string on_this_rank();

// While one of these lives, exit() and quick_exit() end the process with E0424, and a crash (a
// signal of the processor, abort()) in a plugin with E0421; each names plugin, method and rank.
// Before a plugin was loaded exit() does as ever; a crash elsewhere does so always. Handlers that
// were there before hear of a crash, too. For the program and its ranks; an application that uses
// the library ends as it likes. What nothing can hold back, _exit(), is noticed by the launcher of
// local ranks alone.
class MESHWRIGHT_API PluginWatch {
 public:
  PluginWatch();
  ~PluginWatch();
  PluginWatch(const PluginWatch&) = delete;
  PluginWatch& operator=(const PluginWatch&) = delete;
};

}  // namespace meshwright::detail
