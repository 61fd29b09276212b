// A group from the inside: its transport, and what is counted, traced and watched above it.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/parallel/group.h"
#include "meshwright/parallel/testing.h"
#include "sdk/base/collective_log.h"
#include "sdk/base/device_waits.h"
#include "sdk/base/transport.h"
#include "watchdog.h"

namespace meshwright {

struct Group::Impl {
  std::shared_ptr<const detail::Place> place;
  int64_t rank = 0;
  at::Device device = at::kCPU;          // of the world
  std::shared_ptr<Transport> transport;  // null: a group of one
  std::shared_ptr<TrafficCounter> traffic;
  std::shared_ptr<Trace> trace;
  std::shared_ptr<detail::CollectiveLog> log;
  size_t logged_as = 0;  // the group's place in the log
  std::shared_ptr<detail::Watchdog>
      watchdog;  // set: collectives run on the device, and wait() orders its stream only
  std::shared_ptr<detail::DeviceWaits> waits;  // set with the watchdog
  // On a device, while tracing: the end of the latest collective.
  std::shared_ptr<int64_t> last_end = std::make_shared<int64_t>(0);
  int64_t n() const { return static_cast<int64_t>(place->ranks.size()); }
  // For the trace: where the collectives and their waits are.
  int64_t moment() const { return watchdog ? trace->mark() : Trace::now(); }
};

struct World::Impl {
  int64_t rank, size;
  at::Device device;
  std::chrono::milliseconds timeout;
  ConnectGroup connect;
  std::shared_ptr<LivenessCheck> liveness_check =
      std::make_shared<LivenessCheck>();  // shared with the groups
  std::shared_ptr<TrafficCounter> traffic = std::make_shared<TrafficCounter>();
  std::shared_ptr<Trace> trace = std::make_shared<Trace>(device);
  std::shared_ptr<detail::CollectiveLog> log = std::make_shared<detail::CollectiveLog>();
  std::shared_ptr<detail::DeviceWaits> waits = std::make_shared<detail::DeviceWaits>();
  std::shared_ptr<detail::Watchdog> watchdog = {};
  std::vector<std::string> notices = {};
  std::map<std::string, std::shared_ptr<Group>> groups = {};
};

namespace detail {

struct GroupAccess {
  static World::Impl& of(World& world) { return *world.impl_; }
  static const Group::Impl& of(const Group& group) { return *group.impl_; }
  static const Flight* flight(const Work& work) { return work.flight_.get(); }
  // Counts one operation, starts it by `launch(transport)` and turns what it throws into our
  // errors. payload: bytes of the tensors; sent: those that leave this rank, -1: counted already.
  template <class F>
  static Work begin(const Group& group, const char* op, int64_t payload, int64_t sent, F&& launch,
                    bool control = false) {
    return begin_logged(group, op, payload, sent, launch, control, /*collective=*/true,
                        [](CollectiveLog&, int64_t) {});
  }
  // The same for messages to or from single ranks, which `tell(log, ticket)` tells the log of.
  template <class F, class Tell>
  static Work exchange(const Group& group, int64_t payload, F&& launch, Tell&& tell) {
    return begin_logged(group, "send_receive", payload, /*sent=*/-1, launch, /*control=*/false,
                        /*collective=*/false, tell);
  }
  // Calls f and turns what transports throw into our errors. `awaited`: the place in the group
  // whose turn it was; -1: not known.
  template <class F>
  static auto guarded(const Group::Impl& group, const char* op, int64_t bytes, int64_t awaited,
                      F&& f) -> decltype(f());

  static void account(const Group::Impl& group, const char* op, int64_t sent, bool control);

 private:
  template <class F, class Tell>
  static Work begin_logged(const Group& group, const char* op, int64_t payload, int64_t sent,
                           F&& launch, bool control, bool collective, Tell&& tell);
  static Work under_way(const Group& group, const char* op, int64_t bytes, int64_t began,
                        int64_t ticket, bool control, std::unique_ptr<Flight> flight);
};

template <class F>
auto GroupAccess::guarded(const Group::Impl& group, const char* op, int64_t bytes, int64_t awaited,
                          F&& f) -> decltype(f()) {
  const Place& place = *group.place;
  const Waiting waiting;
  try {
    return f();
  } catch (const PeerLate& late) {
    throw place.failure(op, bytes, "timed out", late.peer);
  } catch (const PeerGone& gone) {
    throw place.failure(
        op, bytes,
        "rank " + std::to_string(place.ranks[static_cast<size_t>(gone.peer)]) + " ended");
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    if (group.watchdog) group.watchdog->check();  // which had just given everything up
    throw place.failure(op, bytes, error.what_without_backtrace(), awaited);
  } catch (const std::exception& error) {
    throw place.failure(op, bytes, error.what(), awaited);
  }
}

template <class F, class Tell>
Work GroupAccess::begin_logged(const Group& group, const char* op, int64_t payload, int64_t sent,
                               F&& launch, bool control, bool collective, Tell&& tell) {
  const Group::Impl& g = of(group);
  if (sent >= 0) account(g, op, sent, control);
  int64_t began = g.trace->enabled ? g.moment() : 0;
  if (g.watchdog) g.watchdog->check();
  const int64_t ticket =
      g.log->begin(g.logged_as, op, payload, began, collective, &Purpose::write_now);
  tell(*g.log, ticket);
  std::unique_ptr<Flight> flight;
  try {
    flight = guarded(g, op, payload, -1, [&] { return launch(*g.transport); });
  } catch (...) {
    g.log->mark(ticket, CollectiveState::failed);
    throw;
  }
  return under_way(group, op, payload, began, ticket, control, std::move(flight));
}

}  // namespace detail
}  // namespace meshwright
