// One rank of `meshwright generate`, of `meshwright chat`, and of `meshwright evaluate`.
#pragma once

#include "apps/inference/ask.h"
#include "apps/inference/evaluation.h"

namespace meshwright::rendezvous {
class Ending;
}

namespace meshwright::evaluate {

// Joins the ranks, fills the model and measures its loss on every sample once, whatever the number
// of ranks and their layout: rank 0 writes what was found to standard output. Collective. Returns
// 0; throws Error.
int evaluate_rank(const Request& request, rendezvous::Ending& ending);

}  // namespace meshwright::evaluate

namespace meshwright::generate {

// Joins the ranks, fills the model and writes tokens: rank 0 to standard output as they come, what
// was done to standard error. Collective. Returns 0; throws Error.
int generate_rank(const Ask& ask, rendezvous::Ending& ending);

// The same of every row of a file, of several at once; rank 0 writes their file, and how fast it
// was to standard error. Collective. Returns 0; throws Error.
int prompts_rank(const Ask& ask, rendezvous::Ending& ending);

// Fills the model in this process, and answers one line after another. Keys and values of what both
// have said stay, so that each turn computes what is new in it. Returns 0; throws Error.
int chat_rank(const ChatHere& here, rendezvous::Ending& ending);

}  // namespace meshwright::generate
