// An error as one line. Needs no LibTorch.
#pragma once

#include <algorithm>
#include <string>

#include "meshwright/error.h"
#include "sdk/base/words.h"

namespace meshwright::comparison {

// With its notes, and without line ends.
inline std::string one_line(const Error& error) {
  std::string out = error.what();
  if (!error.notes().empty()) out += " (" + text::join(error.notes(), "; ") + ")";
  std::replace(out.begin(), out.end(), '\n', ' ');
  return out;
}

}  // namespace meshwright::comparison
