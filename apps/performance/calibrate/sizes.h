// What is measured: sizes that training has, so small that all of them together take seconds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/performance/calibrate/measured.h"
#include "apps/performance/calibrate/request.h"

namespace meshwright::calibrate {

// Adds products, kernels, attention and layers without times; `to.cuda` is set.
void add_sizes(Measured& to, Widths widths);
// How many measurements these are.
size_t count_points(const Measured& of);

// Ranks that a collective is measured among.
struct Ranks {
  GroupTime::Kind kind = GroupTime::Kind::host;
  std::string name;
  std::vector<int64_t> ranks;  // of this rank's group
  steptime::Group group;
};
// Those of `rank`. `host`: of each rank, the first rank on its host. The ranks of a host, pairs of
// them, and those with one place on each host; all ranks where hosts have different numbers of
// them. The same kinds on every rank.
std::vector<Ranks> groups_of(const std::vector<int64_t>& host, int64_t rank);

}  // namespace meshwright::calibrate
