// What the verbs that run ranks share: who started this process, the engine's library, the terminal that a rank's parent sees.
#pragma once

#include <optional>
#include <string>

#include "engine/cli/verb.h"
#include "engine/launch/ranks.h"
#include "engine/launch/supervisor.h"

namespace meshwright::cli {

// The ranks of a launcher, or of a parent of ours. Throws Error(usage) when --nproc is given to one of a launcher's.
std::optional<launch::RankEnvironment> ranks_of(const Call& call);
inline bool started_by_us(const std::optional<launch::RankEnvironment>& ranks) {
  return ranks && ranks->source == launch::RankEnvironment::Source::local;
}

// What rank 0 writes to.
struct Screen {
  bool live = false;  // a terminal
  int width = 80;
  bool colour = false, unicode = true;
};
// This process's, or what its parent told of its own.
Screen screen_of(const Call& call, bool started_by_us);
void tell_screen(const Screen& screen, launch::LocalJob& job);

// Calls a function of libmeshwright_engine.so, which lies beside the SDK library; loading it here keeps LibTorch out of all other verbs.
// `entry` takes a pointer to `options` and gives an exit status.
int run_in_engine(const char* entry, const void* options);

}  // namespace meshwright::cli
