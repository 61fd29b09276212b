#include "meshwright/parallel/group.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>

#include "c10d_flight.h"
#include "group_impl.h"
#include "host_lane.h"
#include "meshwright/error.h"
#include "sdk/base/read_by_host.h"
#include "sdk/base/transport.h"
#include "sdk/base/used_up.h"
#include "shared_memory.h"

namespace meshwright {

using at::Tensor;
using detail::GroupAccess;

Flight::~Flight() = default;
Tensor Flight::peer(int64_t /*rank*/) const { return {}; }
Transport::~Transport() = default;
Tensor Transport::registered_memory(int64_t /*bytes*/) { return {}; }

Work::Work() = default;
Work::Work(Work&&) noexcept = default;
Work& Work::operator=(Work&&) noexcept = default;
Work::~Work() = default;

void Work::wait() {
  if (!flight_ || flight_->lends()) return;
  const Group::Impl& group = GroupAccess::of(*group_);
  int64_t waited_from = group.trace->enabled ? group.moment() : 0;
  std::unique_ptr<Flight> flight = std::move(flight_);
  group.log->mark(begin_, detail::CollectiveState::waiting);
  try {
    std::optional<detail::DeviceWaits::Wait> measured;
    if (group.waits) measured.emplace(*group.waits, group.device);
    GroupAccess::guarded(group, op_, bytes_, flight->awaited(), [&] { flight->wait(); });
  } catch (...) {
    group.log->mark(begin_, detail::CollectiveState::failed);
    throw;
  }
  // On a device it has not ended: the watchdog sees that.
  group.log->mark(begin_, group.watchdog ? detail::CollectiveState::queued
                                         : detail::CollectiveState::completed);
  if (group.watchdog)
    for (const auto& handle : flight->handles()) group.watchdog->waited(handle, group.device);
  show(waited_from);
  if (flight->lends()) flight_ = std::move(flight);
}

// The bars of a collective that has ended: its own, unless LibTorch tells its end, and how long
// this rank did nothing but wait.
void Work::show(int64_t waited_from) const {
  const Group::Impl& group = GroupAccess::of(*group_);
  if (!group.trace->enabled || waited_from == 0) return;
  std::string name = group.place->axis + " " + op_;
  int64_t now = group.moment();
  if (!shown_) group.trace->span(lane_, name, group.log->moment_of(begin_), now);
  group.trace->span(Trace::Lane::other, "wait for " + name, waited_from, now);
}

namespace detail {

void GroupAccess::account(const Group::Impl& group, const char* op, int64_t sent, bool control) {
  static const std::string kControl = "control";
  group.traffic->add(control ? kControl : group.place->axis, op, sent);
}

Work GroupAccess::under_way(const Group& group, const char* op, int64_t bytes, int64_t began,
                            int64_t ticket, bool control, std::unique_ptr<Flight> flight) {
  const Group::Impl& g = of(group);
  g.log->mark(ticket, CollectiveState::under_way);
  Work out;
  out.group_ = &group;
  out.op_ = op;
  out.bytes_ = bytes;
  out.begin_ = ticket;
  out.lane_ = control                                ? Trace::Lane::other
              : std::string_view(op) == "all_gather" ? Trace::Lane::gather
                                                     : Trace::Lane::reduce;
  if (g.watchdog)
    for (const auto& handle : flight->handles())
      g.watchdog->add(handle, g.place, op, bytes, ticket);
  if (began != 0) {
    // send and recv have no future: their bar ends when they are waited for.
    for (const auto& handle : flight->handles()) {
      c10::intrusive_ptr<c10::ivalue::Future> future;
      try {
        future = handle->getFuture();
      } catch (const std::exception&) {
      }
      if (!future) continue;
      out.shown_ = true;
      std::string name = g.place->axis + " " + op;
      // On a device LibTorch calls with a stream that waits for the collective; and those of one
      // communicator begin one after the other.
      const std::shared_ptr<int64_t> last = g.watchdog ? g.last_end : nullptr;
      future->addCallback(
          [trace = g.trace, lane = out.lane_, name, began, last](c10::ivalue::Future&) {
            const int64_t end = last ? trace->mark() : Trace::now();
            trace->span(lane, name, began, end, last ? std::exchange(*last, end) : 0);
          });
    }
  }
  out.flight_ = std::move(flight);
  return out;
}

Tensor read_by_host(const Group& group, const Tensor& written) {
  const std::shared_ptr<Watchdog>& watchdog = GroupAccess::of(group).watchdog;
  Tensor out;
  try {
    out = written.cpu();
  } catch (const c10::Error&) {
    if (watchdog) watchdog->check();  // why the device came to that
    throw;
  }
  if (watchdog) watchdog->check();
  return out;
}

}  // namespace detail

Group::Group(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Group::~Group() = default;
const std::string& Group::axis() const { return impl_->place->axis; }
int64_t Group::rank() const { return impl_->rank; }
int64_t Group::size() const { return impl_->n(); }
const std::vector<int64_t>& Group::ranks() const { return impl_->place->ranks; }
bool Group::has_native_reduce_scatter() const {
  return impl_->transport && impl_->transport->has_native_reduce_scatter();
}

Work Group::all_gather(const Tensor& shard, const Tensor& whole) {
  int64_t n = size(), bytes = static_cast<int64_t>(shard.nbytes());
  if (n == 1 || bytes == 0) return {};
  return GroupAccess::begin(*this, "all_gather", bytes * n, bytes * (n - 1),
                            [&](Transport& t) { return t.all_gather(shard, whole); });
}

Work Group::pairwise_exchange(const Tensor& packed, const Tensor& received) {
  int64_t n = size();
  if (n == 1 || packed.numel() == 0) return {};
  auto bytes = static_cast<int64_t>(received.defined() ? received.nbytes() : packed.nbytes());
  return GroupAccess::begin(*this, "reduce_scatter", bytes / (n - 1) * n, bytes,
                            [&](Transport& t) { return t.pairwise_exchange(packed, received); });
}

Work Group::reduce_scatter(const Tensor& packed, const Tensor& shard) {
  int64_t n = size(), bytes = static_cast<int64_t>(shard.nbytes());
  if (n == 1) {
    shard.copy_(packed);
    return {};
  }
  return GroupAccess::begin(*this, "reduce_scatter", bytes * n, bytes * (n - 1),
                            [&](Transport& t) { return t.reduce_scatter(packed, shard); });
}

Work Group::all_reduce(const Tensor& tensor, ReduceOp op, bool control) {
  int64_t n = size(), bytes = static_cast<int64_t>(tensor.nbytes());
  if (n == 1 || bytes == 0) return {};
  return GroupAccess::begin(
      *this, "all_reduce", bytes, 2 * bytes * (n - 1) / n,
      [&](Transport& t) { return t.all_reduce(tensor, op, control); }, control);
}

Work Group::broadcast(const Tensor& tensor, int64_t root) {
  auto bytes = static_cast<int64_t>(tensor.nbytes());
  if (size() == 1 || bytes == 0) return {};
  return GroupAccess::begin(*this, "broadcast", bytes, rank() == root ? bytes : 0,
                            [&](Transport& t) { return t.broadcast(tensor, root); });
}

Work Group::all_to_all(const Tensor& in, std::span<const int64_t> in_splits, const Tensor& out,
                       std::span<const int64_t> out_splits) {
  if (size() == 1) {
    out.copy_(in);
    return {};
  }
  int64_t rows = std::max<int64_t>(in.size(0), 1),
          moved = in.size(0) - in_splits[static_cast<size_t>(rank())];
  auto bytes = static_cast<int64_t>(in.nbytes());
  return GroupAccess::begin(*this, "all_to_all", bytes, bytes / rows * moved, [&](Transport& t) {
    return t.all_to_all(in, in_splits, out, out_splits);
  });
}

Work Group::send_receive(std::span<const PeerMessage> messages) {
  int64_t bytes = 0;
  for (const PeerMessage& message : messages) {
    if (message.peer < 0 || message.peer >= size() || message.peer == rank())
      throw Error(ErrorCode::internal, "a message of place " + std::to_string(rank()) +
                                           " in group " + impl_->place->name() + " for place " +
                                           std::to_string(message.peer));
    bytes += static_cast<int64_t>(message.tensor.nbytes());
  }
  if (messages.empty()) return {};
  for (const PeerMessage& message : messages)
    if (message.way == PeerMessage::Way::send)
      GroupAccess::account(*impl_, "send", static_cast<int64_t>(message.tensor.nbytes()), false);
  return GroupAccess::exchange(
      *this, bytes, [&](Transport& t) { return t.send_receive(messages); },
      [&](detail::CollectiveLog& log, int64_t ticket) {
        for (const PeerMessage& message : messages)
          log.message(ticket, impl_->logged_as, message.peer, message.way == PeerMessage::Way::send,
                      static_cast<int64_t>(message.tensor.nbytes()));
      });
}

void Group::barrier() {
  if (size() == 1) return;
  GroupAccess::begin(*this, "barrier", 0, 0, [](Transport& t) { return t.barrier(); }).wait();
}

// A process's place in the job, and its groups.

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

World::World(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

std::shared_ptr<World> make_world(int64_t rank, int64_t size, at::Device device,
                                  std::chrono::milliseconds timeout, ConnectGroup connect) {
  struct Setting {
    const char *name, *value;
  };
  static constexpr Setting kSettings[] = {
      // LibTorch's recorder of collectives writes down a group's first one without its lock (2.11):
      // two threads that each use a new group have crashed in it. Nothing here reads it; who wants
      // it sets the variable.
      {"TORCH_FR_BUFFER_SIZE", "0"},
      // Nor is it written out after a timeout: LibTorch asks the store for that without a limit,
      // and where the rank that keeps the store is stopped the others would never end.
      {"TORCH_NCCL_DUMP_ON_TIMEOUT", "0"},
      // What NCCL finds after a call LibTorch would think about for a minute, in which no other
      // call begins, and then end the process without a word of ours. A second is enough for the
      // watchdog to tell it; communicators are aborted, and that is all.
      {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "250"},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "2"}};
  static const bool once = [] {
    for (const Setting& one : kSettings) ::setenv(one.name, one.value, /*overwrite=*/0);
    return true;
  }();
  static_cast<void>(once);
  return std::make_shared<World>(
      std::make_unique<World::Impl>(rank, size, device, timeout, std::move(connect)));
}
World::~World() {
  // Groups may live on with whoever holds them; what they run on may not.
  if (!impl_->watchdog) return;
  impl_->waits->clear();
  impl_->watchdog->end(/*success=*/std::uncaught_exceptions() == 0);
  *impl_->liveness_check = nullptr;  // others hear of the end
}

namespace {

// Gives a group of several hosts a transport that makes use of those who share one. Whether all may
// be on one host.
bool join_hosts(Group::Impl& group, const std::string& name, const ConnectGroup& connect) {
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
  return make_world(0, 1, device, std::chrono::minutes(10), ConnectGroup());
}

std::shared_ptr<Group> World::group(const std::string& axis, const std::vector<int64_t>& ranks) {
  Impl& world = *impl_;
  std::string name = axis;
  for (int64_t r : ranks) name += "." + std::to_string(r);
  std::shared_ptr<Group>& kept = world.groups[name];
  if (kept) return kept;
  auto impl = std::make_unique<Group::Impl>();
  impl->place = std::make_shared<detail::Place>(
      detail::Place{axis, world.rank, ranks, world.timeout, world.liveness_check});
  auto mine = std::find(ranks.begin(), ranks.end(), world.rank);
  if (mine == ranks.end())
    throw Error(ErrorCode::internal,
                "rank " + std::to_string(world.rank) + " is not in group " + impl->place->name());
  impl->rank = mine - ranks.begin();
  impl->device = world.device;
  impl->traffic = world.traffic;
  impl->trace = world.trace;
  impl->log = world.log;
  if (ranks.size() > 1) {
    impl->logged_as = impl->log->add_group(axis, ranks);
    auto failed = [&](std::string why) {
      if (const std::optional<Error> limit =
              detail::used_up("rank " + std::to_string(world.rank) + " could not join group " +
                                  impl->place->name() + ": ",
                              why))
        return *limit;
      why.resize(std::min<size_t>(why.size(), 300));
      // Those who came have waited as long, and say so.
      const char* before = "; no word from rank ";
      if (detail::says_timed_out(why) && *world.liveness_check)
        for (int64_t silent : (*world.liveness_check)({.ranks = ranks}).silent)
          why += std::exchange(before, ", rank ") + std::to_string(silent);
      return Error(ErrorCode::rendezvous_failed, "rank " + std::to_string(world.rank) +
                                                     " could not join group " +
                                                     impl->place->name() + ": " + why)
          .key("dist_env.timeout_minutes")
          .help("look at the logs of the other ranks of the group: one ended, hangs or is stopped")
          .help("raise dist_env.timeout_minutes when ranks start far apart");
    };
    bool one_host = true;
    try {
      impl->transport = world.connect(name, ranks);
      if (world.device.is_cpu() && !impl->transport->runs_on_device())
        one_host = join_hosts(*impl, name, world.connect);
    } catch (const c10::Error& e) {
      throw failed(e.what_without_backtrace());
    } catch (const Error&) {
      throw;
    } catch (const std::exception& e) {
      throw failed(e.what());
    }
    if (impl->transport->runs_on_device()) {
      if (!world.watchdog) world.watchdog = std::make_shared<detail::Watchdog>(impl->log);
      world.watchdog->guard(impl->transport, impl->place);
      impl->watchdog = world.watchdog;
      impl->waits = world.waits;
    } else if (world.device.is_cpu()) {
      impl->transport =
          detail::shared_memory_over(std::move(impl->transport), impl->place, impl->rank, one_host);
    }
  }
  return kept = std::make_shared<Group>(std::move(impl));
}

void World::check() {
  if (impl_->watchdog) impl_->watchdog->check();
}

int64_t World::rank() const { return impl_->rank; }
int64_t World::size() const { return impl_->size; }
at::Device World::device() const { return impl_->device; }
std::chrono::milliseconds World::timeout() const { return impl_->timeout; }
TrafficCounter& World::traffic() { return *impl_->traffic; }
Trace& World::trace() { return *impl_->trace; }
const std::vector<std::string>& World::notices() const { return impl_->notices; }
void World::notice(std::string text) { impl_->notices.push_back(std::move(text)); }
void set_liveness_check(World& world, LivenessCheck check) {
  *detail::GroupAccess::of(world).liveness_check = std::move(check);
}

std::shared_ptr<Group> World::everyone() {
  std::vector<int64_t> all(static_cast<size_t>(size()));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  return group("world", all);
}

namespace detail {

CollectiveLog& collective_log(World& world) { return *GroupAccess::of(world).log; }
DeviceWaits& device_waits(World& world) { return *GroupAccess::of(world).waits; }

}  // namespace detail

std::shared_ptr<Group> DeviceMesh::group(const std::string& axis) const {
  return world_->group(axis, mesh_.group(world_->rank(), axis));
}

}  // namespace meshwright
