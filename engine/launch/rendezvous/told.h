// What ranks leave for each other in a store, where anybody may have written it. Only for .cpp
// files, as json_codec.h.
#pragma once

#include <string>

#include "engine/launch/rendezvous/notices.h"
#include "sdk/base/files/json_codec.h"

namespace meshwright::rendezvous {

// json_text() of a T that `who` ("rank 3") left under that key. Throws Error(rendezvous_failed)
// that names both where it is none.
template <class T>
T told(const std::string& text, const std::string& key, const std::string& who) {
  try {
    return base::read_json_text<T>(text);
  } catch (const base::JsonProblem&) {
    throw not_from_a_rank(text, key, who, "is nothing that a rank says");
  }
}

}  // namespace meshwright::rendezvous
