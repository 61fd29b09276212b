// A run that goes on with other dtypes than its checkpoint has.
#pragma once

#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/trainer/local_state.h"

namespace meshwright::train {

// What there is to say when this job holds weights or states in wider dtypes than the checkpoint
// does; empty: nothing. Throws Error(checkpoint_mismatch) when it holds some in dtypes that do not
// represent all of the checkpoint's values: they would be rounded for good, and no later run could
// bring them back.
std::string check_dtypes(const checkpoint::Checkpoint& from,
                         const std::vector<LocalTensor>& tensors);

}  // namespace meshwright::train
