// Whether a model on paper is one: what the engine asks of a plugin's, and the conformance kit of
// everybody's.
#pragma once

#include <string>
#include <vector>

#include "meshwright/outline.h"

namespace meshwright {

// What is wrong with names, shapes, sizes and modules, one line each; empty where nothing is.
MESHWRIGHT_API std::vector<std::string> problems_of(const ModelOutline& outline);

}  // namespace meshwright
