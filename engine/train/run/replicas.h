// What several ranks hold of one tensor must be the same, since a checkpoint keeps it once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/train/step/local_state.h"
#include "meshwright/error.h"

namespace meshwright::train {

// A digest of each tensor that other ranks have too, in the order of Shares::replicas(): a list for
// every group of ranks, empty for groups without this rank. A tensor that no other rank has is not
// read, so that sharded models pay nothing. Local.
using ReplicaDigests = std::vector<std::vector<uint64_t>>;
ReplicaDigests replica_digests(const std::vector<Replicas>& replicas,
                               const std::vector<LocalTensor>& tensors, int64_t rank);
// A number for each of the groups that this rank is in; all tensors of a group as one.
std::vector<uint64_t> summary_of(const ReplicaDigests& digests);
// Collective. `summaries`: of all ranks. Error(replicas_differ), the same on every rank, with
// layout, tensor, the ranks that are unlike the majority (at a tie unlike the first), and how far
// apart the values are; nullopt: all are alike, which takes no further message.
std::optional<Error> find_differing(World& world, const std::vector<Replicas>& replicas,
                                    const std::vector<LocalTensor>& tensors,
                                    const ReplicaDigests& mine,
                                    const std::vector<std::vector<uint64_t>>& summaries,
                                    const std::string& strategy);

}  // namespace meshwright::train
