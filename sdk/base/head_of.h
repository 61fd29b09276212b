// The module that gives a model's logits. Not public, and all inline.
#pragma once

#include "meshwright/outline.h"

namespace meshwright {

// The last Linear outside of everything else; nullptr: the outline has none, as that of a stage
// may.
inline const ModuleOutline* head_of(const ModelOutline& outline) {
  for (auto at = outline.modules.rbegin(); at != outline.modules.rend(); ++at)
    if (at->kind == ModuleKind::linear && module_of(at->name).empty() && !at->name.empty())
      return &*at;
  return nullptr;
}

}  // namespace meshwright
