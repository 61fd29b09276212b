// A plugin's arrays, and its schema, which is checked before anything is read with it.
#pragma once

#include <cstddef>

#include "meshwright/options.h"

namespace meshwright {

// The i-th element of an array whose elements may be longer than ours (a plugin of a later minor
// version).
template <class T>
const T& element(const T* array, size_t i) {
  return *reinterpret_cast<const T*>(reinterpret_cast<const char*>(array) + i * array->struct_size);
}

// Checks the schema itself: names, literals, ranges, duplicate names. Throws
// Error(plugin_bad_descriptor).
MESHWRIGHT_API void check_schema(const OptionSchema& schema);

}  // namespace meshwright
