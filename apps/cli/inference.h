// What generate and chat read of the command line, and refuse before a rank starts.
#pragma once

#include <cstdint>

#include "apps/cli/common.h"
#include "apps/inference/ask.h"

namespace meshwright::cli {

// The folder, what runs beside the model, what ends a text, and how its tokens are drawn. Throws
// Error(usage).
generate::Ask read_sampling(const Call& call);

// Whether the ranks could start on the folder: 0, or the exit status of what was said. Throws
// Error.
int check_folder(Call& call, const generate::Source& source, const generate::Ask& ask,
                 const Ranks& ranks, int64_t wanted);

}  // namespace meshwright::cli
