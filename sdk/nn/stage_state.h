// The stage that this thread's forward computes, for those who do not compute by it:
// current_stage() counts as a question of the model.
#pragma once

#include "meshwright/nn/stage.h"

namespace meshwright::detail {

const StagePart& stage_of_thread();

}  // namespace meshwright::detail
