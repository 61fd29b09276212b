// What ranks told each other on a device, read by the host.
#pragma once

#include <ATen/core/Tensor.h>

#include "meshwright/export.h"

namespace meshwright {

class Group;

namespace detail {

// What a collective of the group has written, on the host, which waits for it here. A collective on
// a device that never ends is given up meanwhile: the wait comes back all the same, and the memory
// holds anything. So it is asked for behind the read, before anybody takes that for a size. Throws
// the Error of World::check(). On the CPU the tensor itself.
MESHWRIGHT_API at::Tensor read_by_host(const Group& group, const at::Tensor& written);

}  // namespace detail
}  // namespace meshwright
