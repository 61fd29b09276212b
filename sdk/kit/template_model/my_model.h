// What both halves know of a model.
#pragma once

#include <meshwright/options.h>

#include <cstdint>

struct Sizes {
  explicit Sizes(const meshwright::Options& o)
      : vocabulary(o.get_int("vocabulary")),
        positions(o.get_int("positions")),
        width(o.get_int("width")),
        layers(o.get_int("layers")),
        heads(o.get_int("heads")) {}
  int64_t vocabulary, positions, width, layers, heads;
};
