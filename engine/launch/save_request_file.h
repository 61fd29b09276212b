#pragma once

namespace meshwright::base {

// A file of this name in a run's folder asks the run to save at its next step.
inline constexpr const char* kSaveRequestFile = "checkpoint_now";

}  // namespace meshwright::base
