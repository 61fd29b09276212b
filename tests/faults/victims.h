// One rank of two that is killed or stopped in the middle of a step.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "program.h"

namespace faults {

// SIGKILL of rank `victim` at any moment after two steps of `meshwright train --nproc 2`: it is
// named, and all end at once.
void check_killed(std::vector<std::string> arguments, int64_t victim, std::mt19937& random);
// SIGSTOP or SIGKILL of rank 1 of two that no launcher watches: rank 0 names it, exit status 6.
// What rank 0 said.
Ended check_left_alone(std::vector<std::string> arguments, int signal, std::mt19937& random);

}  // namespace faults
