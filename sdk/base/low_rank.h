// Names of the factors of a low-rank adapter, A [r, in] and B [out, r]: two modules below the
// Linear that they lie beside. Not public, and all inline.
#pragma once

#include <optional>
#include <string_view>

#include "meshwright/outline.h"

namespace meshwright {

inline constexpr std::string_view kFactorIn = "lora_A", kFactorOut = "lora_B";

struct LowRankFactor {
  std::string_view linear;  // the module's name
  bool out = false;         // B
};

// nullopt: the parameter is no factor's.
inline std::optional<LowRankFactor> low_rank_factor(std::string_view parameter) {
  constexpr std::string_view kWeight = ".weight";
  if (!parameter.ends_with(kWeight)) return std::nullopt;
  parameter.remove_suffix(kWeight.size());
  const size_t dot = parameter.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view part = parameter.substr(dot + 1);
  if (part != kFactorIn && part != kFactorOut) return std::nullopt;
  return LowRankFactor{parameter.substr(0, dot), part == kFactorOut};
}

// Whether a module is a factor that has been added beside a Linear, and no Linear of the model's
// own.
inline bool is_added_factor(const ModuleOutline& module) {
  return module.kind == ModuleKind::other && low_rank_factor(module.name + ".weight").has_value();
}

// Where tensor parallelism cuts a factor of a Linear that it cuts by columns (its rows) or by rows
// (its columns): one of the two shares the cut dimension. The other is whole on every rank, and its
// gradient a partial sum, since each rank sees its part of what lies between them.
inline std::optional<int64_t> factor_cut_dim(bool column, bool out) {
  if (column != out) return std::nullopt;
  return column ? 0 : 1;
}

}  // namespace meshwright
