// Shared memory between the ranks of one host, in front of the sockets: a message that finds room
// is put down once and read in place.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "meshwright/parallel/group.h"
#include "sdk/base/mailboxes.h"
#include "sdk/base/transport.h"

namespace meshwright::detail {

struct Place;

// Collective. Makes room for messages of up to so many bytes, `ahead` gathers and one exchange
// under way at once, if all ranks are on one host and on the CPU, and MESHWRIGHT_SHARED_MEMORY is
// not 0. Without room everything works as before. A rank's room is gather_bytes * (ahead + 2) +
// exchange_bytes * 2. A room that is too small is replaced: nothing may be under way then.
MESHWRIGHT_API void reserve(Group& group, int64_t gather_bytes, int64_t exchange_bytes,
                            int64_t ahead);
// As maps_gather() of base/, for pairwise_exchange().
bool maps_exchange(const Group& group, int64_t bytes);
// Memory to pack a pairwise exchange into: [count].
at::Tensor stage(Group& group, int64_t count, at::ScalarType type);
// Memory for this rank's next message of up to so many bytes (uint8, [bytes]); only where
// maps_gather(bytes), which all ranks must find alike. exchange_staged() hands it over: peer() is
// then all that a rank staged, as bytes, and the ranks know where in it their own part lies.
// `moved`: the bytes meant for other ranks. Counted as an all-to-all.
at::Tensor stage_rows(Group& group, int64_t bytes);
Work exchange_staged(Group& group, int64_t moved);
// After Work::wait(): what a rank put into shared memory, read in place until the work is destroyed
// or assigned to. All-gather: its shard; exchange: what it packed for us. Undefined where nothing
// was mapped.
MESHWRIGHT_API at::Tensor peer(const Work& work, int64_t rank);
// Bytes of memory that the transport has registered for its operations (NCCL). Undefined where it
// has none.
at::Tensor registered_memory(const Group& group, int64_t bytes);

// The transport of a group of ranks on CPUs. `sockets` carries what finds no room, and all where it
// is known that the ranks are on several hosts (`one_host` false).
std::shared_ptr<Transport> shared_memory_over(std::shared_ptr<Transport> sockets,
                                              std::shared_ptr<const Place> place, int64_t rank,
                                              bool one_host);

}  // namespace meshwright::detail
