// make_world(): groups, and who is to blame when one of their collectives does not end.
#include <algorithm>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "engine/rendezvous/bounded.h"
#include "engine/rendezvous/notices.h"
#include "engine/rendezvous/rendezvous.h"
#include "meshwright/error.h"

namespace meshwright::rendezvous {

namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// How long a rank that waited in vain waits for others to say that they did, too. Ranks of one collective begin to wait, and so run out
// of time, within a step's differences of each other.
constexpr Milliseconds kRollCall(1000);

// Those of `ranks` that did not report here. The keeper of the store stays until those that did have their answer, too.
std::vector<int64_t> silent_ranks(c10d::Store& store, int64_t rank, bool keeper, const std::vector<int64_t>& ranks) {
  auto wait_for = [&](const std::string& key, std::chrono::steady_clock::time_point end) {
    bool there = store.check({key});
    for (; !there && std::chrono::steady_clock::now() < end; there = store.check({key})) std::this_thread::sleep_for(Milliseconds(20));
    return there;
  };
  auto end = std::chrono::steady_clock::now() + kRollCall;
  store.set(std::to_string(rank), bytes_of("late"));
  std::vector<int64_t> silent, reported;
  for (int64_t r : ranks) (wait_for(std::to_string(r), end) ? reported : silent).push_back(r);
  store.set("done/" + std::to_string(rank), bytes_of("1"));
  for (int64_t r : reported)
    if (keeper) wait_for("done/" + std::to_string(r), end + kRollCall);
  return silent;
}

World::Connect over_gloo(const launch::RankEnvironment& ranks, const StorePtr& store, Milliseconds timeout) {
  bool one_host = ranks.one_host();
  return [store, timeout, one_host, rank = ranks.rank](const std::string& name, const std::vector<int64_t>& members) {
    auto index = static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
    if (interface && *interface)
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(interface));
    else if (one_host)
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    else
      options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
    options->threads = 1;  // as fast as more, and switches least
    auto prefixed = c10::make_intrusive<c10d::PrefixStore>("group/" + name, store);
    auto size = static_cast<int>(members.size());
    try {
      return bounded(timeout + Milliseconds(2000), [=]() -> c10::intrusive_ptr<c10d::Backend> {
        return c10::make_intrusive<c10d::ProcessGroupGloo>(prefixed, index, size, options);
      });
    } catch (const NoAnswer&) {
      throw Error(ErrorCode::rendezvous_failed, "rank " + std::to_string(rank) + " could not connect to the ranks of group " + name +
                                                    " within " + seconds(timeout) + ": rank 0, which keeps the store, hangs or is stopped")
          .key("dist_env.timeout_minutes")
          .help("look at the log of rank 0");
    }
  };
}

World::Connect over_nccl(const launch::RankEnvironment& ranks, const StorePtr& store, const device::Chosen& chosen, Milliseconds timeout) {
  // The world's own watch speaks first, in our words; LibTorch's would end the process.
  Milliseconds last_resort = timeout + std::chrono::minutes(2);
  return [store, last_resort, nccl = chosen.nccl, device = chosen.device.index(), rank = ranks.rank](const std::string& name,
                                                                                                     const std::vector<int64_t>& members) {
    auto index = static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
    return nccl->make_nccl(c10::make_intrusive<c10d::PrefixStore>("group/" + name, store), index, static_cast<int>(members.size()), device,
                           last_resort);
  };
}

}  // namespace

std::shared_ptr<World> make_world(const launch::RankEnvironment& ranks, const StorePtr& store, const device::Chosen& chosen,
                                  Milliseconds timeout) {
  World::Connect connect;
  if (ranks.world_size > 1) connect = chosen.nccl ? over_nccl(ranks, store, chosen, timeout) : over_gloo(ranks, store, timeout);
  auto world = std::make_shared<World>(ranks.rank, ranks.world_size, chosen.device, timeout, connect);
  for (const std::string& notice : chosen.notices) world->notice(notice);
  if (ranks.world_size == 1) return world;
  auto late = c10::make_intrusive<c10d::PrefixStore>("late", store);
  world->set_roll_call([late, rank = ranks.rank, agent = ranks.agent_store](const std::vector<int64_t>& members) -> std::vector<int64_t> {
    try {
      return bounded(2 * kRollCall + Milliseconds(500), [=] { return silent_ranks(*late, rank, rank == 0 && !agent, members); });
    } catch (const NoAnswer&) {
      // The store is silent, and so is who keeps it.
      if (!agent && rank != 0) return {0};
    } catch (const std::exception&) {  // its keeper has ended
    }
    return {};
  });
  return world;
}

}  // namespace meshwright::rendezvous
