// What the verbs that run ranks share: who started this process, the engine's library, the terminal
// that a rank's parent sees.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "engine/cli/verb.h"
#include "engine/launch/ranks.h"
#include "engine/launch/supervisor.h"

namespace meshwright::cli {

// The ranks of a launcher, or of a parent of ours. Warns when variables look like those of a
// launcher that is not known. Throws Error(usage) when --nproc is given to one of a launcher's.
std::optional<launch::RankEnvironment> ranks_of(Call& call);
inline bool started_by_us(const std::optional<launch::RankEnvironment>& ranks) {
  return ranks && ranks->source == launch::RankEnvironment::Source::local;
}

// Runs the part of a verb that may refuse the job before this process has met the other ranks. When
// it does, in a rank that a launcher started, the error is printed and the other ranks, which may
// not refuse by themselves, are told of it. Rank 0 alone says notices.
int refuse_together(Call& call, const std::optional<launch::RankEnvironment>& ranks,
                    const std::function<int()>& work);

// What rank 0 writes to.
struct Screen {
  bool live = false;  // a terminal
  int width = 80;
  bool colour = false, unicode = true;
};
// This process's, or what its parent told of its own.
Screen screen_of(const Call& call, bool started_by_us);
// The command that started this process, or its launcher, as a shell takes it again; empty for a
// rank of another launcher.
std::string command_again(const std::optional<launch::RankEnvironment>& ranks);
void tell_screen(const Screen& screen, launch::LocalJob& job);

// Calls a function of libmeshwright_engine.so, which lies beside the SDK library; loading it here
// keeps LibTorch out of all other verbs. `entry` takes a pointer to `options` and gives an exit
// status.
int run_in_engine(const char* entry, const void* options);

}  // namespace meshwright::cli
