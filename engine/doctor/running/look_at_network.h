// What needs LibTorch's part of the engine to be looked at: interfaces as the rendezvous knows
// them, and devices.
#pragma once

#include <string>

#include "engine/doctor/facts.h"
#include "engine/launch/ranks.h"
#include "meshwright/options.h"

namespace meshwright::doctor {

// The interface that groups of this rank listen on; after the ranks have met, and a group is there.
Network look_at_network(const launch::RankEnvironment& ranks, bool one_host,
                        const std::string& wanted, bool nccl);
// What can be said before, or when they do not meet.
Network network_before(const launch::RankEnvironment& ranks, const std::string& wanted,
                       const std::string& why);
// Without a launcher, whether torchrun's default port is free.
Ports look_at_rendezvous(const launch::RankEnvironment& ranks, bool one_host);
// `table`: dist_env. Loads the CUDA libraries only where runs would.
Devices look_at_devices(const Options& table, const launch::RankEnvironment& ranks);
Nccl look_at_nccl(const Devices& devices);

}  // namespace meshwright::doctor
