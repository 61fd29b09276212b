// What leaves a plugin's code: its own Errors as they are, whatever else as a fault of the plugin.
// For the engine and for the conformance kit.
#pragma once

#include <exception>
#include <optional>
#include <string>

#include "meshwright/error.h"
#include "meshwright/export.h"
#include "plugin_at_work.h"

namespace meshwright::detail {

// To be called while an exception is handled that left the plugin. Throws it again when it is an
// Error, or tells of memory (E0508) or of a parameter that was freed (E0902); else
// Error(plugin_foreign_exception) with plugin, what it was doing, and rank.
[[noreturn]] MESHWRIGHT_API void rethrow_from(const PluginCode* plugin, const char* doing);
// To be called while it is handled. An exception that came out of LibTorch's code, if code of a
// plugin began it: Error(plugin_foreign_exception) as above.
MESHWRIGHT_API std::optional<Error> fault_of_thrower(const std::exception& error);
// "plugin acme 1.0.0 (...), in end_step, on rank 1"
MESHWRIGHT_API std::string fault_context(const PluginCode* plugin, const char* doing);
// std::runtime_error, say; needs an exception that is handled.
MESHWRIGHT_API std::string exception_type();

// Runs `body` as code of the plugin.
template <class Body>
decltype(auto) guarded(const PluginCode* plugin, const char* doing, Body&& body) {
  PluginCall call(plugin, doing);
  try {
    return body();
  } catch (...) {
    rethrow_from(plugin, doing);
  }
}

}  // namespace meshwright::detail
