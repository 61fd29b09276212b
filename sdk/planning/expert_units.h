// The units of a model under expert parallelism: experts leave the unit of their layer, embedding
// and head that of the root. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "footprint_parts.h"
#include "meshwright/export.h"
#include "meshwright/outline.h"

namespace meshwright {

// A module that becomes a unit of its own.
struct UnitApart {
  enum class Role : uint8_t { experts, embedding, head };
  std::string module;
  Role role = Role::experts;
  std::vector<size_t> parameters;  // places among the names given
};

struct SplitUnit {
  std::vector<UnitApart> apart;  // in the order of their first parameter
  std::vector<size_t> rest;      // what stays
};

class MESHWRIGHT_API ExpertUnits {
 public:
  explicit ExpertUnits(const ModelOutline& outline)
      : tied_(outline.tied_embeddings), modules_(outline) {}
  // `names`: of a unit's parameters. `outside_lists`: embedding and head are apart only there; tied
  // ones stay together in the root.
  SplitUnit split(const std::vector<std::string_view>& names, bool outside_lists,
                  const std::function<bool(size_t place)>& is_expert) const;

 private:
  bool tied_;
  footprint::ModuleIndex modules_;
};

}  // namespace meshwright
