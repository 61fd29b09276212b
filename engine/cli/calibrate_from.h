// calibrate --from: the part that starts no ranks.
#pragma once

#include <string>

#include "engine/cli/verb.h"

namespace meshwright::cli {

// Reads the run that --from names, writes `out` and prints. The exit status.
int calibrate_from(Call& call, const std::string& out);

}  // namespace meshwright::cli
