// For a plugin's one main file: defines the exported descriptor.
//
//   static constexpr meshwright_option kOptions[] = {
//       meshwright::bool_option("overlap", true, "Overlap reduction with backward.")};
//   static const meshwright_strategy kStrategies[] = {
//       meshwright::describe<Mine>({.name = "mine", .summary = "...", .options = kOptions})};
//   // Without a semicolon:
//   MESHWRIGHT_PLUGIN("mine", "1.0.0", "Me", "Apache-2.0", "What it is for", kStrategies)
#pragma once

#include <cstdio>
#include <exception>
#include <iterator>
#include <span>

#include "meshwright/plugin.h"
#include "meshwright/strategy.h"

extern "C" __attribute__((visibility("hidden"))) const char
    meshwright_plugin_facts[];  // defined by the marker file that meshwright_add_plugin() adds

namespace meshwright {

struct StrategyDescription {
  const char* name;
  const char* aliases = nullptr;
  const char* summary = "";
  const char* options_table = nullptr;
  std::span<const meshwright_option> options = {};
  uint64_t capabilities = MESHWRIGHT_CAN_PLAN;
};

namespace detail {

inline void report(meshwright_status* status, const char* message) noexcept {
  if (status == nullptr) return;
  status->code = 1;
  std::snprintf(status->message, sizeof status->message, "%s", message);
}

template <class S>
void* create(meshwright_status* status) noexcept {
  try {
    return static_cast<Strategy*>(new S);
  } catch (const std::exception& error) {
    report(status, error.what());
  } catch (...) {
    report(status, "an exception that is not a std::exception");
  }
  return nullptr;
}

template <class S>
void destroy(void* strategy) noexcept {
  delete static_cast<Strategy*>(strategy);
}

}  // namespace detail

#ifdef MESHWRIGHT_PLUGIN_RUNTIME  // meshwright_add_plugin(... RUNTIME ...) sets it
namespace detail {
inline constexpr meshwright_runtime_half kRuntimeHalf = {
    {sizeof(meshwright_runtime_half), MESHWRIGHT_RUNTIME_HALF, nullptr}, MESHWRIGHT_PLUGIN_RUNTIME};
inline constexpr const meshwright_extension* kExtensions = &kRuntimeHalf.extension;
}  // namespace detail
#else
namespace detail {
inline constexpr const meshwright_extension* kExtensions = nullptr;
}  // namespace detail
#endif

template <class S>
constexpr meshwright_strategy describe(const StrategyDescription& d) {
  return {sizeof(meshwright_strategy),
          d.name,
          d.aliases,
          d.summary,
          d.options_table,
          d.options.data(),
          d.options.size(),
          d.capabilities,
          &detail::create<S>,
          &detail::destroy<S>};
}

}  // namespace meshwright

#define MESHWRIGHT_PLUGIN(name, version, vendor, license, summary, strategies) \
  extern "C" __attribute__((visibility("default"), used))                      \
  const meshwright_plugin meshwright_plugin_v1 = {sizeof(meshwright_plugin),   \
                                                  MESHWRIGHT_PLUGIN_MAGIC,     \
                                                  MESHWRIGHT_SDK_MAJOR,        \
                                                  MESHWRIGHT_SDK_MINOR,        \
                                                  name,                        \
                                                  version,                     \
                                                  vendor,                      \
                                                  license,                     \
                                                  summary,                     \
                                                  meshwright_plugin_facts,     \
                                                  std::data(strategies),       \
                                                  std::size(strategies),       \
                                                  meshwright::detail::kExtensions};
