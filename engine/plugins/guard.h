// What leaves a plugin's code: its own Errors as they are, whatever else as a fault of the plugin.
#pragma once

#include <memory>
#include <string>

#include "engine/plugins/registry.h"
#include "sdk/base/plugin_guard.h"

namespace meshwright::loader {

// "acme 1.0.0 (/opt/libmeshwright_acme.so)"
std::string text_of(const LoadedPlugin& plugin);

using detail::exception_type;
using detail::fault_context;
using detail::fault_of_thrower;
using detail::guarded;
using detail::rethrow_from;

// Instructions of a library that is loaded are that plugin's from now on: a crash in them is put
// down to it.
void know_code(const std::filesystem::path& file, const detail::PluginCode* plugin);
// Loads the library that runs what the plugin plans; "" means none. The SDK would do so too, and
// tells why it cannot.
void load_runtime_half(const std::filesystem::path& file, const detail::PluginCode* plugin);

// Every hook of `inner` so guarded; what it throws has a note on plugin, hook and rank.
std::shared_ptr<Strategy> guarded_strategy(const LoadedPlugin& plugin,
                                           std::shared_ptr<Strategy> inner);

}  // namespace meshwright::loader
