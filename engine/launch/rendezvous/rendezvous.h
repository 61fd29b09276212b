// How ranks find each other: one c10d store, the back ends of groups over it, and the comparison of
// all ranks before anything else.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/launch/device/device.h"
#include "engine/launch/ranks.h"
#include "meshwright/error.h"
#include "meshwright/parallel/group.h"

namespace c10d {
class Store;
}

namespace meshwright::rendezvous {

class ErrorExchange;

// Collective. Rank 0 serves a store (store.h) to those that know the job's secret: on the
// inherited socket, else at the address that MASTER_ADDR names (connectivity.h; `interface`:
// dist_env.interface, where that says nothing), on loopback only when all ranks are on one host.
// Under torchrun's agent every rank is a client of LibTorch's, which knows no secret. A world of
// one has no network. Returns when all ranks are there. Throws Error(rendezvous_failed) with host,
// port, seconds and the missing ranks, or why rank 0 refuses this one; Error(ranks_disagree |
// bad_rank_environment) when the ranks differ in WORLD_SIZE or two have one number, on all ranks
// where they prove to be of one job, by a secret or the launcher's name for it, else on the rank
// that came later; and the error of a rank that refuses. Comes back within the timeout and a few
// seconds, whoever hangs.
c10::intrusive_ptr<c10d::Store> connect_store(const launch::RankEnvironment& ranks,
                                              std::chrono::milliseconds timeout,
                                              const std::string& interface = {});

// Collective over all ranks, before the first group. Throws Error(ranks_disagree) on every rank,
// naming the odd ones (those unlike the majority, at a tie unlike rank 0) and what differs;
// Error(rendezvous_failed) when a rank does not come.
using Facts = std::vector<std::pair<std::string, std::string>>;
void compare_ranks(c10d::Store& store, int64_t rank, int64_t world, const Facts& facts,
                   std::chrono::milliseconds timeout);

// For a rank that ends before it has met the others: they end with the same error, which says on
// which rank it was. Rank 0 keeps the store that they look for until all have heard, the others
// look for rank 0; both for at most a quarter of a minute, for it may be that every rank ends by
// itself or that none was started. Does nothing for ranks that run_local_ranks() started: their
// parent ends them.
void refuse(const launch::RankEnvironment& ranks, const Error& error) noexcept;

// Collective. The world of these ranks, its groups over NCCL or gloo as chosen. `interface`:
// dist_env.interface; empty: the route to MASTER_ADDR decides. With an exchange a collective that
// breaks because another rank has ended throws what that one posted. `connections`:
// dist_env.connections_per_peer, alike on all ranks. Throws what find_endpoints() does
// (endpoints.h).
std::shared_ptr<World> make_world(const launch::RankEnvironment& ranks,
                                  const c10::intrusive_ptr<c10d::Store>& store,
                                  const device::Chosen& chosen, std::chrono::milliseconds timeout,
                                  const std::string& interface = {},
                                  const std::shared_ptr<ErrorExchange>& exchange = nullptr,
                                  int64_t connections = 1);

}  // namespace meshwright::rendezvous
