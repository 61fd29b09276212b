// gather_texts() of values. Only for .cpp files, as json_codec.h.
#pragma once

#include <string>
#include <vector>

#include "engine/train/step/rank_agreement.h"
#include "sdk/base/files/json_codec.h"

namespace meshwright::train {

// Collective. What every rank says, in rank order.
template <class T>
std::vector<T> gather(World& world, const T& mine) {
  std::vector<T> out;
  for (const std::string& text : gather_texts(world, base::json_text(mine)))
    out.push_back(base::read_json_text<T>(text));
  return out;
}

}  // namespace meshwright::train
