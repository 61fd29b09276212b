// The operator within a module at which ranks part from one process.
#pragma once

#include <cstdint>
#include <string>

#include "apps/prove/running/runs.h"

namespace meshwright::prove {

// Of two runs that watched the operators of a module: the first that differs, as a clause; empty:
// none of those that can be compared does.
std::string first_operator(const Run& truth, const Run& ranks, int64_t length);

}  // namespace meshwright::prove
