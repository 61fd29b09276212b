// A process's place in the job, and its groups.
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <utility>

#include "c10d_flight.h"
#include "group_impl.h"
#include "hosts.h"
#include "meshwright/error.h"
#include "meshwright/parallel/group.h"
#include "sdk/base/used_up.h"
#include "shared_memory.h"

namespace meshwright {

std::shared_ptr<Transport> transport_over(c10::intrusive_ptr<c10d::Backend> backend,
                                          at::Device device) {
  if (backend->getBackendName() == "nccl")
    return detail::nccl_transport(std::move(backend), device);
  return transport_over(std::vector{std::move(backend)});
}

std::shared_ptr<Transport> transport_over(
    std::vector<c10::intrusive_ptr<c10d::Backend>> connections) {
  return detail::gloo_transport(std::move(connections));
}

World::World(int64_t rank, int64_t size, at::Device device, std::chrono::milliseconds timeout,
             Connect connect)
    : rank_(rank),
      size_(size),
      device_(device),
      timeout_(timeout),
      connect_(std::move(connect)),
      liveness_check_(std::make_shared<LivenessCheck>()),
      traffic_(std::make_shared<TrafficCounter>()),
      trace_(std::make_shared<detail::TraceAndLog>(device)) {
  // LibTorch's recorder of collectives writes down a group's first one without its lock (2.11): two
  // threads that each use a new group have crashed in it. Nothing here reads it; who wants it sets
  // the variable.
  static const int unrecorded = ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
  static_cast<void>(unrecorded);
  // Nor is it written out after a timeout: LibTorch asks the store for that without a limit, and
  // where the rank that keeps the store is stopped the others would never end.
  static const int unwritten = ::setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", /*overwrite=*/0);
  static_cast<void>(unwritten);
  // What NCCL finds after a call LibTorch would think about for a minute, in which no other call
  // begins, and then end the process without a word of ours. A second is enough for the watchdog
  // to tell it; communicators are aborted, and that is all.
  static const int soon = ::setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "250", /*overwrite=*/0),
                   aborts = ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", /*overwrite=*/0);
  static_cast<void>(soon + aborts);
}
World::~World() {
  // Groups may live on with whoever holds them; what they run on may not.
  if (!watchdog_) return;
  detail::device_waits(*this).clear();
  watchdog_->end(/*success=*/std::uncaught_exceptions() == 0);
  *liveness_check_ = nullptr;  // others hear of the end
}

namespace {

// Gives a group of several hosts a transport that makes use of those who share one. Whether all may
// be on one host.
bool join_hosts(Group::Impl& group, const std::string& name, const World::Connect& connect) {
  const detail::HostMap map = detail::find_hosts(*group.transport, *group.place, group.rank);
  if (map.layered())
    if (auto layered =
            detail::layered_over(group.transport, group.place, group.rank, map,
                                 [&](const std::string& part, const std::vector<int64_t>& ranks) {
                                   return connect(name + part, ranks);
                                 }))
      group.transport = std::move(layered);
  return map.hosts() == 1;
}

}  // namespace

std::shared_ptr<World> World::single(at::Device device) {
  return std::make_shared<World>(0, 1, device, std::chrono::minutes(10), Connect());
}

std::shared_ptr<Group> World::group(const std::string& axis, const std::vector<int64_t>& ranks) {
  std::string name = axis;
  for (int64_t r : ranks) name += "." + std::to_string(r);
  std::shared_ptr<Group>& kept = groups_[name];
  if (kept) return kept;
  auto impl = std::make_unique<Group::Impl>();
  impl->place =
      std::make_shared<detail::Place>(detail::Place{axis, rank_, ranks, timeout_, liveness_check_});
  auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end())
    throw Error(ErrorCode::internal,
                "rank " + std::to_string(rank_) + " is not in group " + impl->place->name());
  impl->rank = mine - ranks.begin();
  impl->device = device_;
  impl->traffic = traffic_;
  impl->trace = trace_;
  impl->log = {trace_, &detail::collective_log(*this)};
  if (ranks.size() > 1) {
    impl->logged_as = impl->log->add_group(axis, ranks);
    auto failed = [&](std::string why) {
      if (const std::optional<Error> limit =
              detail::used_up("rank " + std::to_string(rank_) + " could not join group " +
                                  impl->place->name() + ": ",
                              why))
        return *limit;
      why.resize(std::min<size_t>(why.size(), 300));
      // Those who came have waited as long, and say so.
      const bool late =
          why.find("imed out") != std::string::npos || why.find("imeout") != std::string::npos;
      const char* before = "; no word from rank ";
      if (late && *liveness_check_)
        for (int64_t silent : (*liveness_check_)({.ranks = ranks}).silent)
          why += std::exchange(before, ", rank ") + std::to_string(silent);
      return Error(ErrorCode::rendezvous_failed, "rank " + std::to_string(rank_) +
                                                     " could not join group " +
                                                     impl->place->name() + ": " + why)
          .key("dist_env.timeout_minutes")
          .help("look at the logs of the other ranks of the group: one ended, hangs or is stopped")
          .help("raise dist_env.timeout_minutes when ranks start far apart");
    };
    bool one_host = true;
    try {
      impl->transport = connect_(name, ranks);
      if (device_.is_cpu() && !impl->transport->runs_on_device())
        one_host = join_hosts(*impl, name, connect_);
    } catch (const c10::Error& e) {
      throw failed(e.what_without_backtrace());
    } catch (const Error&) {
      throw;
    } catch (const std::exception& e) {
      throw failed(e.what());
    }
    if (impl->transport->runs_on_device()) {
      if (!watchdog_) watchdog_ = std::make_shared<detail::Watchdog>(impl->log);
      watchdog_->guard(impl->transport, impl->place);
      impl->watchdog = watchdog_;
      impl->waits = {trace_, &detail::device_waits(*this)};
    } else if (device_.is_cpu()) {
      impl->transport =
          detail::shared_memory_over(std::move(impl->transport), impl->place, impl->rank, one_host);
    }
  }
  return kept = std::make_shared<Group>(std::move(impl));
}

void World::check() {
  if (watchdog_) watchdog_->check();
}

std::shared_ptr<Group> World::everyone() {
  std::vector<int64_t> all(static_cast<size_t>(size_));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  return group("world", all);
}

namespace detail {
CollectiveLog& collective_log(World& world) {
  return static_cast<TraceAndLog&>(world.trace()).log;  // as every World makes it
}
DeviceWaits& device_waits(World& world) { return static_cast<TraceAndLog&>(world.trace()).waits; }
}  // namespace detail

std::shared_ptr<Group> DeviceMesh::group(const std::string& axis) const {
  return world_->group(axis, mesh_.group(world_->rank(), axis));
}

}  // namespace meshwright
