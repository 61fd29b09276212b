// Which way a group's messages take, for whoever measures them.
#pragma once

#include <cstdint>

#include "meshwright/export.h"

namespace meshwright {

class Group;

namespace detail {

// Whether a message of that size goes through shared memory: then all_gather() takes an undefined
// `whole`, pairwise_exchange() of what stage() gave an undefined `received`, and peer() has what
// came.
MESHWRIGHT_API bool maps_gather(const Group& group, int64_t bytes);
// Collective. From now on large sums of the group, for which reserve() has no room, go through
// shared memory too, if its ranks are on one host: 1.5 MiB a rank.
MESHWRIGHT_API void expect_large_sums(Group& group);

}  // namespace detail
}  // namespace meshwright
