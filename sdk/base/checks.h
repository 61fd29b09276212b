// Whether a model on paper is one: what the engine asks of a plugin's, and the conformance kit of
// everybody's.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/components.h"
#include "meshwright/options.h"
#include "meshwright/outline.h"
#include "meshwright/tp_plan.h"

namespace meshwright {

// What is wrong with names, shapes, sizes and modules, one line each; empty where nothing is.
MESHWRIGHT_API std::vector<std::string> problems_of(const ModelOutline& outline);

// A plugin's arrays, and its schema, which is checked before anything is read with it.

// Bytes of a C struct at version 1.0 of the descriptor, which every plugin has at least; what comes
// later is behind them, and asked for only where struct_size reaches it.
template <class T>
inline constexpr size_t kFirstSize = 0;
template <>
inline constexpr size_t kFirstSize<meshwright_option> = 72;
template <>
inline constexpr size_t kFirstSize<meshwright_tp_plan> = 24;
template <>
inline constexpr size_t kFirstSize<meshwright_strategy> = 96;
template <>
inline constexpr size_t kFirstSize<meshwright_extension> = 24;
template <>
inline constexpr size_t kFirstSize<meshwright_runtime_half> = 32;
template <>
inline constexpr size_t kFirstSize<meshwright_component> = 64;
template <>
inline constexpr size_t kFirstSize<meshwright_components> = 40;
template <>
inline constexpr size_t kFirstSize<meshwright_plugin> = 96;

// The i-th element of an array whose elements may be longer than ours (a plugin of a later minor
// version).
template <class T>
const T& element(const T* array, size_t i) {
  return *reinterpret_cast<const T*>(reinterpret_cast<const char*>(array) + i * array->struct_size);
}

// Checks the schema itself: names, literals, ranges, duplicate names. Throws
// Error(plugin_bad_descriptor).
MESHWRIGHT_API void check_schema(const OptionSchema& schema);

// Tensor-parallel plans by name.
namespace tp {

// The plans that a strategy brings, for the rest of the process; again the same ones do nothing.
// Throws Error(conflict) for a name that another plan has. Thread-safe.
MESHWRIGHT_API void register_plans(const meshwright_strategy& strategy);
// Those and the built-in ones, sorted. Thread-safe.
MESHWRIGHT_API std::vector<std::string> plan_names();
// Whether a module of this kind can have the style. Matrices and tables are cut, and of a module
// of the model's own what it holds itself, by rows of heads, without anything to send.
inline bool can_have(ModuleKind kind, const TpStyle& style) {
  switch (style.kind) {
    case TpStyleKind::column:
      if (kind == ModuleKind::other && style.output == TpLayout::shard_last) return true;
      [[fallthrough]];
    case TpStyleKind::row:
      return kind == ModuleKind::linear || kind == ModuleKind::embedding;
    case TpStyleKind::sequence:
    case TpStyleKind::sequence_all_gather:
      return kind == ModuleKind::norm || kind == ModuleKind::other;
    case TpStyleKind::rotary:
      return kind == ModuleKind::rotary;
  }
  return false;
}

}  // namespace tp

// The facts this SDK library was built with: what a plugin's own facts are compared to.

// Sorted key=value lines; facts.h says what of them is compared.
MESHWRIGHT_API std::string_view build_facts();
// "meshwright_abi_<hash16>": the marker symbol a plugin with equal facts carries.
MESHWRIGHT_API std::string_view build_facts_symbol();

}  // namespace meshwright
