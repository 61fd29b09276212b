// Ranks that compute the same must get the same bits, and processors of unlike vectors do not
// promise that (semantics 13.2).
#pragma once

#include <string>
#include <vector>

namespace meshwright::train {

// What to tell where ranks use unlike vectors; empty: all are alike. `vectors`: of every rank, as
// at::get_cpu_capability() has it.
std::string unlike_vectors(const std::vector<std::string>& vectors);

}  // namespace meshwright::train
