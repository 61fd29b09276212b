// What a run is made of that lies in files, as its first attempt found it: a later one that begins
// anew, since nothing was saved yet, must not become another run.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace meshwright::train {

// What it is, in words, and its checksum.
using MadeOf = std::vector<std::pair<std::string, std::string>>;

// `memory`: a descriptor that all attempts share; the first one writes into it. Throws
// Error(checkpoint_mismatch) where something differs from then. Local.
void hold_to_first_attempt(int memory, const MadeOf& made_of);

}  // namespace meshwright::train
