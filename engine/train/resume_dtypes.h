// A run that goes on with other dtypes than its checkpoint has.
#pragma once

#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/trainer/local_state.h"

namespace meshwright::train {

// What there is to say when this job holds weights or states in other dtypes than the checkpoint
// does. Throws Error(checkpoint_mismatch) when it holds some in dtypes that do not represent all of
// the checkpoint's values: they would be rounded for good, and no later run could bring them back.
// What is frozen now has no main weights and no state: it goes on as the model has computed with
// it, in the dtype in which that was stored.
std::vector<std::string> check_dtypes(const checkpoint::Checkpoint& from,
                                      const std::vector<LocalTensor>& tensors);

}  // namespace meshwright::train
