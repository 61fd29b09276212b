// Names of the factors of a low-rank adapter, A [r, in] and B [out, r]: two modules below the
// Linear that they lie beside. Not public, and all inline.
#pragma once

#include <optional>
#include <string_view>

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

}  // namespace meshwright
