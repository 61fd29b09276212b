// meshwright_request as the engine has it.
#pragma once

#include "engine/generate/source.h"
#include "meshwright/meshwright.h"

namespace meshwright::capi {

// Throws Error(usage).
generate::Request read_request(const meshwright_request* request);

}  // namespace meshwright::capi
