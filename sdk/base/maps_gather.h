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

}  // namespace detail
}  // namespace meshwright
