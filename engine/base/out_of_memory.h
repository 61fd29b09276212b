// The error of memory that ended, as the engine calls it.
#pragma once

#include "sdk/base/out_of_memory.h"

namespace meshwright::base {
using detail::line_of_memory;
using detail::out_of_memory;
using detail::tells_of_memory;

}  // namespace meshwright::base
