// Which checkpoint a run continues.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "engine/checkpoint/folder.h"

namespace meshwright::checkpoint {

// Whether a launcher has started these ranks again after a failure (MESHWRIGHT_RESTART,
// TORCHELASTIC_RESTART_COUNT).
bool restarted();

struct Start {
  std::filesystem::path from;  // a checkpoint's folder; empty: afresh
  bool own = false;            // it is one of the run's own: metrics go on where it was made
  std::vector<std::string> told = {};  // of checkpoints that were passed over
};
// `resume`: auto, none, or a path; `own`: the run's folder of checkpoints. After a restart the
// run's own newest one wins over what was asked for at first. Throws Error(no_checkpoint |
// bad_checkpoint).
Start choose_start(const std::string& resume, const std::filesystem::path& own, bool restarted);
// Moves own checkpoints that the run will not continue out of its way (folder.h), and tidies
// the rest; the folder they are in now, or "".
std::string set_aside(const Start& start, const std::filesystem::path& own);

}  // namespace meshwright::checkpoint
