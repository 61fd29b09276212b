// For a plugin's one main file: defines the exported descriptor.
//
//   static constexpr meshwright_option kOptions[] = {
//       meshwright::bool_option("overlap", true, "Overlap reduction with backward.")};
//   static const meshwright_strategy kStrategies[] = {
//       meshwright::describe<Mine>({.name = "mine", .summary = "...", .options = kOptions})};
//   // Without a semicolon:
//   MESHWRIGHT_PLUGIN("mine", "1.0.0", "Me", "Apache-2.0", "What it is for", kStrategies)
//
// Model families and kinds of data sets alike: describe_model<Family>({.name = ...}) in an array
// for MESHWRIGHT_MODEL_PLUGIN, describe_dataset<Kind>(...) for MESHWRIGHT_DATA_PLUGIN; a plugin
// that has several sorts uses MESHWRIGHT_PLUGIN_OF(..., strategies, models, datasets), with
// meshwright::kNoStrategies or meshwright::kNoComponents for what it has none of.
#pragma once

#include <concepts>
#include <cstdio>
#include <exception>
#include <iterator>
#include <span>

#include "meshwright/components.h"
#include "meshwright/data/dataset_kind.h"
#include "meshwright/model/model_family.h"
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
  uint64_t capabilities = 0;  // MESHWRIGHT_CAN_..., beside what describe() finds
  // Tensor-parallel plans of its own, for distributed.tp_plan: an array of named_tp_plan()s.
  std::span<const meshwright_tp_plan> tp_plans = {};
};

// `plan` by name: pure, the same on every rank; throws Error only.
template <TpPlanEntries (*plan)(const ModelOutline& outline, bool sequence_parallel)>
constexpr meshwright_tp_plan named_tp_plan(const char* name) {
  return {sizeof(meshwright_tp_plan), name,
          [](const void* outline, int sequence_parallel, void* entries) {
            *static_cast<TpPlanEntries*>(entries) =
                plan(*static_cast<const ModelOutline*>(outline), sequence_parallel != 0);
          }};
}

namespace detail {

inline void report(meshwright_status* status, const char* message) noexcept {
  if (status == nullptr) return;
  status->code = 1;
  std::snprintf(status->message, sizeof status->message, "%s", message);
}

template <class Base, class T>
void* create(meshwright_status* status) noexcept {
  try {
    return static_cast<Base*>(new T);
  } catch (const std::exception& error) {
    report(status, error.what());
  } catch (...) {
    report(status, "an exception that is not a std::exception");
  }
  return nullptr;
}

template <class Base>
void destroy(void* made) noexcept {
  delete static_cast<Base*>(made);
}

#ifdef MESHWRIGHT_PLUGIN_RUNTIME  // meshwright_add_plugin(... RUNTIME ...) sets it
inline constexpr meshwright_runtime_half kRuntimeHalf = {
    {sizeof(meshwright_runtime_half), MESHWRIGHT_RUNTIME_HALF, nullptr}, MESHWRIGHT_PLUGIN_RUNTIME};
inline constexpr const meshwright_extension* kExtensions = &kRuntimeHalf.extension;
#else
inline constexpr const meshwright_extension* kExtensions = nullptr;
#endif

// Both hooks are Strategy's own. One that is protected or overloaded is not: it has no type here.
template <class S>
concept PlansOnly = std::same_as<decltype(&S::parallelize), decltype(&Strategy::parallelize)> &&
                    std::same_as<decltype(&S::plan_sharding), decltype(&Strategy::plan_sharding)>;

}  // namespace detail

// S plans. It trains too if it overrides parallelize() or plan_sharding(), or has a running half.
template <class S>
constexpr meshwright_strategy describe(const StrategyDescription& d) {
  uint64_t can = d.capabilities | MESHWRIGHT_CAN_PLAN;
  const meshwright_extension* half = detail::kExtensions;
  if (!detail::PlansOnly<S> || half != nullptr) can |= MESHWRIGHT_CAN_PARALLELIZE;
  return {sizeof(meshwright_strategy),
          d.name,
          d.aliases,
          d.summary,
          d.options_table,
          d.options.data(),
          d.options.size(),
          can,
          &detail::create<Strategy, S>,
          &detail::destroy<Strategy>,
          d.tp_plans.data(),
          d.tp_plans.size()};
}

struct ComponentDescription {
  const char* name;
  const char* aliases = nullptr;
  const char* summary = "";
  std::span<const meshwright_option> options = {};
};

namespace detail {

template <class Base, class T>
constexpr meshwright_component describe_component(const ComponentDescription& d) {
  return {sizeof(meshwright_component),
          d.name,
          d.aliases,
          d.summary,
          d.options.data(),
          d.options.size(),
          &create<Base, T>,
          &destroy<Base>};
}

}  // namespace detail

template <class Family>
constexpr meshwright_component describe_model(const ComponentDescription& d) {
  return detail::describe_component<ModelFamily, Family>(d);
}
template <class Kind>
constexpr meshwright_component describe_dataset(const ComponentDescription& d) {
  return detail::describe_component<DatasetKind, Kind>(d);
}

inline constexpr std::span<const meshwright_strategy> kNoStrategies{};
inline constexpr std::span<const meshwright_component> kNoComponents{};

}  // namespace meshwright

#define MESHWRIGHT_PLUGIN(name, version, vendor, license, summary, strategies)  \
  MESHWRIGHT_DETAIL_PLUGIN(name, version, vendor, license, summary, strategies, \
                           meshwright::detail::kExtensions)
#define MESHWRIGHT_MODEL_PLUGIN(name, version, vendor, license, summary, models)                   \
  MESHWRIGHT_PLUGIN_OF(name, version, vendor, license, summary, meshwright::kNoStrategies, models, \
                       meshwright::kNoComponents)
#define MESHWRIGHT_DATA_PLUGIN(name, version, vendor, license, summary, datasets)          \
  MESHWRIGHT_PLUGIN_OF(name, version, vendor, license, summary, meshwright::kNoStrategies, \
                       meshwright::kNoComponents, datasets)
#define MESHWRIGHT_PLUGIN_OF(name, version, vendor, license, summary, strategies, models,        \
                             datasets)                                                           \
  static const meshwright_components meshwright_plugin_models = {                                \
      {sizeof(meshwright_components), MESHWRIGHT_MODELS, meshwright::detail::kExtensions},       \
      std::data(models),                                                                         \
      std::size(models)};                                                                        \
  static const meshwright_components meshwright_plugin_datasets = {                              \
      {sizeof(meshwright_components), MESHWRIGHT_DATASETS, &meshwright_plugin_models.extension}, \
      std::data(datasets),                                                                       \
      std::size(datasets)};                                                                      \
  MESHWRIGHT_DETAIL_PLUGIN(name, version, vendor, license, summary, strategies,                  \
                           &meshwright_plugin_datasets.extension)
#define MESHWRIGHT_DETAIL_PLUGIN(name, version, vendor, license, summary, strategies, extensions) \
  extern "C" __attribute__((visibility("default"), used))                                         \
  const meshwright_plugin meshwright_plugin_v1 = {sizeof(meshwright_plugin),                      \
                                                  MESHWRIGHT_PLUGIN_MAGIC,                        \
                                                  MESHWRIGHT_SDK_MAJOR,                           \
                                                  MESHWRIGHT_SDK_MINOR,                           \
                                                  name,                                           \
                                                  version,                                        \
                                                  vendor,                                         \
                                                  license,                                        \
                                                  summary,                                        \
                                                  meshwright_plugin_facts,                        \
                                                  std::data(strategies),                          \
                                                  std::size(strategies),                          \
                                                  extensions};
