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
// The same of all instructions of the program or library that this address lies in.
MESHWRIGHT_API void library_is_of(const PluginCode* plugin, const void* inside);

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

// Whose code this thread runs, by the innermost PluginCall; nullptr: the engine's.
MESHWRIGHT_API const PluginCode* plugin_at_work();
// The one that was called last, by any thread; nullptr: none was.
MESHWRIGHT_API const PluginCode* last_plugin();

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
