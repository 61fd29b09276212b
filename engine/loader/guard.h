// What leaves a plugin's code: its own Errors as they are, whatever else as a fault of the plugin.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "engine/loader/registry.h"
#include "sdk/base/plugin_at_work.h"

namespace meshwright::loader {

// "acme 1.0.0 (/opt/libmeshwright_acme.so)"
std::string text_of(const LoadedPlugin& plugin);

// To be called while an exception is handled that left the plugin. Throws it again when it is an
// Error, or tells of memory (E0508) or of a parameter that was freed (E0902); else
// Error(plugin_foreign_exception) with plugin, what it was doing, and rank.
[[noreturn]] void rethrow_from(const detail::PluginCode* plugin, const char* doing);
// To be called while it is handled. An exception that came out of LibTorch's code, if code of a
// plugin began it: Error(plugin_foreign_exception) as above.
std::optional<Error> fault_of_thrower(const std::exception& error);
// "plugin acme 1.0.0 (...), in end_step, on rank 1"
std::string fault_context(const detail::PluginCode* plugin, const char* doing);
// std::runtime_error, say; needs an exception that is handled.
std::string exception_type();

// Runs `body` as code of the plugin.
template <class Body>
decltype(auto) guarded(const detail::PluginCode* plugin, const char* doing, Body&& body) {
  detail::PluginCall call(plugin, doing);
  try {
    return body();
  } catch (...) {
    rethrow_from(plugin, doing);
  }
}

// Loads the library that runs what the plugin plans, a private copy as of the plugin itself; ""
// means none. The SDK would do so too, and tells why it cannot.
void load_runtime_half(const std::filesystem::path& file, const detail::PluginCode* plugin);

// Every hook of `inner` so guarded; what it throws has a note on plugin, hook and rank.
std::shared_ptr<Strategy> guarded_strategy(const LoadedPlugin& plugin,
                                           std::shared_ptr<Strategy> inner);

}  // namespace meshwright::loader
