// How a rank's process ends beyond what its error says (exit_status() in meshwright/error.h).
#pragma once

namespace meshwright::launch {

inline constexpr int kPreempted =
    75;  // saved in the middle because a signal asked for it: the same command goes on
inline constexpr int kDone =
    76;  // between a rank and its supervisor: ended as it should; 0 would also be a plugin's exit()

}  // namespace meshwright::launch
