#include "meshwright/group.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "mailbox.h"
#include "meshwright/error.h"
#include "watch.h"

namespace meshwright {

using at::Tensor;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

struct Group::Impl {
  std::shared_ptr<const detail::Place> place;
  int64_t rank = 0;
  c10::intrusive_ptr<c10d::Backend> backend;
  at::Device device = at::kCPU;
  std::shared_ptr<Wire> wire;
  std::shared_ptr<Trace> trace;
  std::shared_ptr<detail::Watch> watch;  // set: collectives run on the device, and wait() orders its stream only
  bool remote_reduction = false;
  int tag = 0;
  std::unique_ptr<detail::Mailbox> mailbox;
  int64_t staged = 0;       // sequence of the slot that stage() lent
  int64_t staged_rows = 0;  // and stage_rows()
  const void* staged_at = nullptr;
  std::vector<Tensor> spare;    // of pair sums that have ended, for the next of the same size
  detail::Mailbox::Sizes room;  // what `mailbox` has, or what was tried in vain
  bool tried = false;
  int64_t n() const { return static_cast<int64_t>(place->ranks.size()); }
  // gloo reads and writes memory of the host only.
  bool through_host(const Tensor& t) const { return !remote_reduction && !t.is_cpu(); }
};

struct Pending::Impl {
  std::vector<WorkPtr> works;
  Group::Impl* group = nullptr;
  const char* op = "";
  int64_t bytes = 0, begin = 0;
  Trace::Lane lane = Trace::Lane::reduce;
  bool shown = false;  // LibTorch calls back at its end
  // Over shared memory: the slot to read of every peer.
  bool mapped = false;
  detail::Mailbox::Channel channel = detail::Mailbox::gather;
  int64_t sequence = 0, count = 0;
  at::ScalarType type = at::kFloat;
  const void* own = nullptr;                    // this rank's slot, of a mapped all_reduce
  std::vector<const void*> slots;               // by rank, after wait()
  Tensor sum;                                   // of an all_reduce that this rank adds up itself
  Tensor other;                                 // the other rank's tensor, where sockets bring it
  std::vector<std::pair<Tensor, Tensor>> lent;  // device tensor to write (or none), host copy

  void start(WorkPtr work) {
    if (work) works.push_back(std::move(work));
  }
  // What a collective reads or writes in place of `t`: itself, or a copy in the host's memory that wait() copies back.
  Tensor input(const Tensor& t) {
    if (!group->through_host(t)) return t;
    lent.emplace_back(Tensor(), t.cpu());
    return lent.back().second;
  }
  Tensor output(const Tensor& t, bool also_input = false) {
    if (!group->through_host(t)) return t;
    lent.emplace_back(t, also_input ? t.cpu() : at::empty(t.sizes(), t.options().device(at::kCPU)));
    return lent.back().second;
  }
  // `awaited`: the place in the group whose turn it was, where that is known.
  // The bars of a collective that has ended: its own, unless LibTorch tells its end, and how long this rank did nothing but wait.
  void show(int64_t waited_from) const {
    Trace& trace = *group->trace;
    if (!trace.enabled || waited_from == 0) return;
    std::string name = group->place->axis + " " + op;
    int64_t now = Trace::now();
    if (!shown) trace.span(lane, name, begin, now);
    trace.span(Trace::Lane::other, "wait for " + name, waited_from, now);
  }
  [[noreturn]] void fail(const std::string& what, int64_t awaited = -1) const { throw group->place->failure(op, bytes, what, awaited); }
};

Pending::Pending() = default;
Pending::Pending(Pending&&) noexcept = default;
Pending& Pending::operator=(Pending&& other) noexcept {
  if (this != &other) {
    release();
    impl_ = std::move(other.impl_);
  }
  return *this;
}
Pending::~Pending() { release(); }

void Pending::release() {
  if (!impl_ || impl_->slots.empty()) return;
  detail::Mailbox& mailbox = *impl_->group->mailbox;
  for (int64_t r = 0; r < impl_->group->n(); ++r)
    if (r != impl_->group->rank) mailbox.give_back(impl_->channel, r, impl_->sequence);
  impl_->slots.clear();
  impl_.reset();
}

Tensor Pending::peer(int64_t rank) const {
  if (!impl_ || impl_->slots.empty() || rank == impl_->group->rank) return {};
  const auto* at = static_cast<const char*>(impl_->slots[static_cast<size_t>(rank)]);
  if (impl_->channel == detail::Mailbox::reduce) {
    int64_t mine = impl_->group->rank < rank ? impl_->group->rank : impl_->group->rank - 1;  // our place among the peer's peers
    at += static_cast<size_t>(mine * impl_->count) * c10::elementSize(impl_->type);
  }
  return at::from_blob(const_cast<char*>(at), {impl_->count}, at::TensorOptions().dtype(impl_->type));
}

// In the order of the ranks, so that all get the same bits.
void Pending::add_up() {
  Tensor sum = std::move(impl_->sum);
  auto slot = [&](int64_t rank) {
    return at::from_blob(const_cast<void*>(impl_->slots[static_cast<size_t>(rank)]), sum.sizes(), sum.options());
  };
  at::add_out(sum, slot(0), slot(1));
  for (int64_t r = 2; r < impl_->group->n(); ++r) sum.add_(slot(r));
  release();
}

void Pending::wait() {
  if (!impl_ || !impl_->slots.empty()) return;
  int64_t waited_from = impl_->group->trace->enabled ? Trace::now() : 0;
  if (impl_->mapped) {
    auto bytes = impl_->count * static_cast<int64_t>(c10::elementSize(impl_->type));
    try {
      std::vector<const void*> slots(static_cast<size_t>(impl_->group->n()), nullptr);
      slots[static_cast<size_t>(impl_->group->rank)] = impl_->own;
      for (int64_t r = 0; r < impl_->group->n(); ++r)
        if (r != impl_->group->rank)
          slots[static_cast<size_t>(r)] =
              impl_->group->mailbox->read(impl_->channel, r, bytes, impl_->sequence, impl_->group->place->timeout);
      impl_->slots = std::move(slots);
    } catch (const detail::Mailbox::Late& late) {
      impl_->fail("timed out", late.peer);
    } catch (const detail::Mailbox::Gone& gone) {
      impl_->fail("rank " + std::to_string(impl_->group->place->ranks[static_cast<size_t>(gone.peer)]) + " ended");
    }
    impl_->show(waited_from);
    if (impl_->sum.defined()) add_up();
    return;
  }
  std::unique_ptr<Impl> impl = std::move(impl_);
  try {
    for (WorkPtr& work : impl->works) work->wait();
    for (auto& [device, host] : impl->lent)
      if (device.defined()) device.copy_(host);
    if (impl->other.defined()) {
      at::add_out(impl->sum, impl->sum, impl->other);
      impl->group->spare.push_back(std::move(impl->other));
    }
    impl->show(waited_from);
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& e) {
    impl->fail(e.what_without_backtrace());
  } catch (const std::exception& e) {
    impl->fail(e.what());
  }
}

Group::Group(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Group::~Group() = default;
const std::string& Group::axis() const { return impl_->place->axis; }
int64_t Group::rank() const { return impl_->rank; }
int64_t Group::size() const { return impl_->n(); }
const std::vector<int64_t>& Group::ranks() const { return impl_->place->ranks; }
bool Group::reduces_remotely() const { return impl_->remote_reduction; }

namespace {

const std::string kControl = "control";

// Starts one collective: counts it, runs `start` with the record, and turns errors of the start into ours.
template <class F>
std::unique_ptr<Pending::Impl> begin(Group::Impl& g, const char* op, int64_t payload, int64_t sent, F&& start, bool control = false) {
  auto pending = std::make_unique<Pending::Impl>();
  pending->group = &g;
  pending->op = op;
  pending->bytes = payload;
  pending->lane = control ? Trace::Lane::other : std::string_view(op) == "all_gather" ? Trace::Lane::gather : Trace::Lane::reduce;
  g.wire->add(control ? kControl : g.place->axis, op, sent);
  bool tracing = g.trace->enabled;
  pending->begin = tracing ? Trace::now() : 0;
  if (g.watch) g.watch->check();
  try {
    start(*pending);
    if (g.watch)
      for (const WorkPtr& work : pending->works) g.watch->add(work, g.place, op, payload);
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& e) {
    pending->fail(e.what_without_backtrace());
  } catch (const std::exception& e) {
    pending->fail(e.what());
  }
  if (tracing) {
    // send and recv have no future: their bar ends when they are waited for.
    for (WorkPtr& work : pending->works) {
      c10::intrusive_ptr<c10::ivalue::Future> future;
      try {
        future = work->getFuture();
      } catch (const std::exception&) {
      }
      if (!future) continue;
      pending->shown = true;
      future->addCallback([trace = g.trace, lane = pending->lane, name = g.place->axis + " " + op,
                           start = pending->begin](c10::ivalue::Future&) { trace->span(lane, name, start, Trace::now()); });
    }
  }
  return pending;
}

Tensor slot(const Tensor& flat, int64_t index, int64_t count) {
  int64_t each = flat.numel() / count;
  return flat.narrow(0, index * each, each);
}

// Two ranks: `mine` goes over, `other` comes. One broadcast each is the cheapest that gloo has.
void swap_pair(Group::Impl& g, Pending::Impl& p, const Tensor& mine, const Tensor& other) {
  for (int64_t r = 0; r < 2; ++r) {
    std::vector<Tensor> one{r == g.rank ? mine : other};
    c10d::BroadcastOptions options;
    options.rootRank = r;
    p.start(g.backend->broadcast(one, options));
  }
}

// Larger sums than this are gloo's own: they need no second tensor.
constexpr int64_t kPairSumBytes = int64_t{4} << 20;

Tensor take_spare(Group::Impl& g, const Tensor& like) {
  auto kept = std::find_if(g.spare.begin(), g.spare.end(),
                           [&](const Tensor& t) { return t.numel() == like.numel() && t.scalar_type() == like.scalar_type(); });
  if (kept != g.spare.end()) {
    Tensor out = kept->view(like.sizes());
    g.spare.erase(kept);
    return out;
  }
  if (g.spare.size() > 3) g.spare.erase(g.spare.begin());
  return at::empty_like(like, like.options());
}

}  // namespace

void Group::reserve(int64_t gather_bytes, int64_t exchange_bytes, int64_t ahead) {
  Impl& g = *impl_;
  int64_t n = g.n();
  const char* wish = std::getenv("MESHWRIGHT_SHARED_MEMORY");
  using detail::Mailbox;
  if (n == 1 || !g.device.is_cpu()) return;
  if (g.tried && (!g.mailbox || (gather_bytes <= g.room.slot[Mailbox::gather] && exchange_bytes <= g.room.slot[Mailbox::reduce] &&
                                 ahead + 2 <= g.room.ring[Mailbox::gather])))
    return;
  bool wanted = n <= 64 && !(wish && std::string_view(wish) == "0");
  Mailbox::Sizes sizes = g.room;
  sizes.slot[Mailbox::gather] = std::max(sizes.slot[Mailbox::gather], gather_bytes);
  sizes.slot[Mailbox::reduce] = std::max(sizes.slot[Mailbox::reduce], exchange_bytes);
  // One slot less could leave two ranks waiting for each other.
  sizes.ring[Mailbox::gather] = std::max(g.tried ? sizes.ring[Mailbox::gather] : 0, ahead + 2);
  sizes.ring[Mailbox::reduce] = 2;
  g.room = sizes;
  g.tried = true;
  g.mailbox.reset();
  // Rank 0 makes a region under a name nobody can guess and tells it; who cannot open it is on another host.
  Tensor name = at::zeros({64}, at::kByte);
  std::unique_ptr<Mailbox> box;
  // Nothing stays behind, also when a rank dies before all have come.
  struct Unlink {
    std::string made;
    ~Unlink() {
      if (!made.empty()) Mailbox::unlink(made);
    }
  } unlink;
  if (g.rank == 0 && wanted) {
    std::random_device random;
    char text[64];
    std::snprintf(text, sizeof text, "/meshwright-%08x%08x%08x%08x", random(), random(), random(), random());
    box = Mailbox::create(text, n, sizes);
    if (box) {
      unlink.made = text;
      std::memcpy(name.mutable_data_ptr(), text, sizeof text);
    }
  }
  all_reduce(name, ReduceOp::sum, /*control=*/true).wait();  // the others add zeros
  const auto* text = static_cast<const char*>(name.const_data_ptr());
  bool offered = text[0] != 0;
  if (offered && wanted && g.rank != 0) box = Mailbox::open(text, n, sizes);
  if (box) box->enter(g.rank);
  Tensor all = at::full({1}, box ? 1.0 : 0.0, at::kDouble);
  all_reduce(all, ReduceOp::sum, /*control=*/true).wait();
  if (all.item<double>() == static_cast<double>(n)) g.mailbox = std::move(box);
}

bool Group::maps_gather(int64_t bytes) const { return impl_->mailbox && impl_->mailbox->fits(detail::Mailbox::gather, bytes); }
bool Group::maps_exchange(int64_t bytes) const { return impl_->mailbox && impl_->mailbox->fits(detail::Mailbox::reduce, bytes); }

namespace {

void* stage_slot(Group::Impl& g, detail::Mailbox::Channel channel, const char* op, int64_t bytes, int64_t& sequence) {
  try {
    return g.mailbox->stage(channel, bytes, sequence, g.place->timeout);
  } catch (const detail::Mailbox::Late& late) {
    Pending::Impl record;
    record.group = &g, record.op = op, record.bytes = bytes;
    record.fail("timed out", late.peer);
  } catch (const detail::Mailbox::Gone& gone) {
    Pending::Impl record;
    record.group = &g, record.op = op, record.bytes = bytes;
    record.fail("rank " + std::to_string(g.place->ranks[static_cast<size_t>(gone.peer)]) + " ended");
  }
}

}  // namespace

Tensor Group::stage(int64_t count, at::ScalarType type) {
  Impl& g = *impl_;
  void* at = stage_slot(g, detail::Mailbox::reduce, "reduce_scatter", count * static_cast<int64_t>(c10::elementSize(type)), g.staged);
  g.staged_at = at;
  return at::from_blob(at, {count}, at::TensorOptions().dtype(type));
}

Tensor Group::registered_memory(int64_t bytes) const {
  const Impl& g = *impl_;
  if (!g.backend || !g.device.is_cuda() || !g.backend->supportsTensorAlloc(g.device.index())) return {};
  return g.backend->allocateTensor(bytes, at::TensorOptions().dtype(at::kByte).device(g.device));
}

Tensor Group::stage_rows(int64_t bytes) {
  Impl& g = *impl_;
  // Messages differ from rank to rank; each lies where the largest would.
  void* at = stage_slot(g, detail::Mailbox::gather, "all_to_all", g.room.slot[detail::Mailbox::gather], g.staged_rows);
  return at::from_blob(at, {bytes}, at::TensorOptions().dtype(at::kByte));
}

Pending Group::exchange_staged(int64_t moved) {
  Impl& g = *impl_;
  Pending out;
  out.impl_ = begin(g, "all_to_all", moved, moved, [&](Pending::Impl& p) {
    p.mapped = true;
    p.channel = detail::Mailbox::gather;
    p.sequence = g.staged_rows;
    p.count = g.room.slot[detail::Mailbox::gather];
    p.type = at::kByte;
    g.mailbox->publish(p.channel, p.sequence);
  });
  return out;
}

Pending Group::all_gather(const Tensor& shard, const Tensor& whole) {
  Impl& g = *impl_;
  Pending out;
  int64_t n = g.n();
  if (n == 1 || shard.numel() == 0) return out;
  int64_t bytes = static_cast<int64_t>(shard.nbytes());
  if (!whole.defined()) {
    out.impl_ = begin(g, "all_gather", bytes * n, bytes * (n - 1), [&](Pending::Impl& p) {
      p.mapped = true;
      p.channel = detail::Mailbox::gather;
      p.count = shard.numel();
      p.type = shard.scalar_type();
      std::memcpy(stage_slot(g, p.channel, "all_gather", bytes, p.sequence), shard.const_data_ptr(), static_cast<size_t>(bytes));
      g.mailbox->publish(p.channel, p.sequence);
    });
    return out;
  }
  out.impl_ = begin(g, "all_gather", bytes * n, bytes * (n - 1), [&](Pending::Impl& p) {
    Tensor in = p.input(shard), all = p.output(whole);
    if (g.remote_reduction) {
      p.start(g.backend->_allgather_base(all, in));
    } else if (n == 2) {
      swap_pair(g, p, in, slot(all, 1 - g.rank, n));
    } else {
      int tag = g.tag++;
      for (int64_t k = 1; k < n; ++k) {
        std::vector<Tensor> one{slot(all, (g.rank + k) % n, n)};
        p.start(g.backend->recv(one, static_cast<int>((g.rank + k) % n), tag));
      }
      for (int64_t k = 1; k < n; ++k) {
        std::vector<Tensor> one{in};
        p.start(g.backend->send(one, static_cast<int>((g.rank + k) % n), tag));
      }
    }
  });
  return out;
}

Pending Group::exchange(const Tensor& packed, const Tensor& received) {
  Impl& g = *impl_;
  Pending out;
  int64_t n = g.n();
  if (n == 1 || packed.numel() == 0) return out;
  bool own = received.defined() && packed.numel() != received.numel();
  int64_t bytes = static_cast<int64_t>(own ? received.nbytes() : packed.nbytes());
  out.impl_ = begin(g, "reduce_scatter", bytes / (n - 1) * n, bytes, [&](Pending::Impl& p) {
    if (g.staged_at != nullptr && packed.const_data_ptr() == g.staged_at) {
      p.mapped = true;
      p.channel = detail::Mailbox::reduce;
      p.sequence = g.staged;
      p.count = packed.numel() / (n - 1);
      p.type = packed.scalar_type();
      g.staged_at = nullptr;
      g.mailbox->publish(p.channel, p.sequence);
      return;
    }
    // Directly to each peer: least bytes and no copy of the own slot (gloo's all-to-all refuses to leave that out).
    int tag = g.tag++;
    Tensor in = p.input(packed), out_of = p.output(received);
    auto place = [&](int64_t peer) { return peer < g.rank ? peer : peer - 1; };
    for (int64_t k = 1; k < n; ++k) {
      int64_t peer = (g.rank + n - k) % n;
      std::vector<Tensor> one{slot(out_of, place(peer), n - 1)};
      p.start(g.backend->recv(one, static_cast<int>(peer), tag));
    }
    for (int64_t k = 1; k < n; ++k) {
      int64_t peer = (g.rank + k) % n;
      std::vector<Tensor> one{own ? slot(in, peer, n) : slot(in, place(peer), n - 1)};
      p.start(g.backend->send(one, static_cast<int>(peer), tag));
    }
  });
  return out;
}

Pending Group::reduce_scatter(const Tensor& packed, const Tensor& shard) {
  Impl& g = *impl_;
  Pending out;
  int64_t n = g.n();
  if (n == 1) {
    shard.copy_(packed);
    return out;
  }
  int64_t bytes = static_cast<int64_t>(shard.nbytes());
  out.impl_ = begin(g, "reduce_scatter", bytes * n, bytes * (n - 1), [&](Pending::Impl& p) {
    Tensor in = p.input(packed), into = p.output(shard);
    p.start(g.backend->_reduce_scatter_base(into, in));
  });
  return out;
}

Pending Group::all_reduce(const Tensor& tensor, ReduceOp op, bool control) {
  Impl& g = *impl_;
  Pending out;
  int64_t n = g.n();
  if (n == 1 || tensor.numel() == 0) return out;
  int64_t bytes = static_cast<int64_t>(tensor.nbytes());
  out.impl_ = begin(
      g, "all_reduce", bytes, 2 * bytes * (n - 1) / n,
      [&](Pending::Impl& p) {
        if (op == ReduceOp::sum && maps_gather(bytes)) {
          p.mapped = true;
          p.channel = detail::Mailbox::gather;
          p.count = tensor.numel();
          p.type = tensor.scalar_type();
          void* slot = stage_slot(g, p.channel, "all_reduce", bytes, p.sequence);
          std::memcpy(slot, tensor.const_data_ptr(), static_cast<size_t>(bytes));
          g.mailbox->publish(p.channel, p.sequence);
          p.own = slot;
          p.sum = tensor;
          return;
        }
        if (op == ReduceOp::sum && !control && n == 2 && bytes <= kPairSumBytes && !g.remote_reduction && tensor.is_cpu()) {
          // Two ranks: both tensors cross at once and each rank adds, which takes half the turns of gloo's own; a + b = b + a to the bit.
          p.sum = tensor;
          p.other = take_spare(g, tensor);
          swap_pair(g, p, tensor, p.other);
          return;
        }
        std::vector<Tensor> one{p.output(tensor, /*also_input=*/true)};
        c10d::AllreduceOptions options;
        options.reduceOp = op == ReduceOp::sum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
        p.start(g.backend->allreduce(one, options));
      },
      control);
  return out;
}

Pending Group::broadcast(const Tensor& tensor, int64_t root) {
  Impl& g = *impl_;
  Pending out;
  if (g.n() == 1 || tensor.numel() == 0) return out;
  int64_t bytes = static_cast<int64_t>(tensor.nbytes());
  out.impl_ = begin(g, "broadcast", bytes, g.rank == root ? bytes : 0, [&](Pending::Impl& p) {
    std::vector<Tensor> one{p.output(tensor, /*also_input=*/true)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    p.start(g.backend->broadcast(one, options));
  });
  return out;
}

Pending Group::all_to_all(const Tensor& in, std::span<const int64_t> in_splits, const Tensor& out_tensor,
                          std::span<const int64_t> out_splits) {
  Impl& g = *impl_;
  Pending out;
  if (g.n() == 1) {
    out_tensor.copy_(in);
    return out;
  }
  int64_t rows = std::max<int64_t>(in.size(0), 1);
  int64_t moved = in.size(0) - in_splits[static_cast<size_t>(g.rank)];
  int64_t bytes = static_cast<int64_t>(in.nbytes());
  out.impl_ = begin(g, "all_to_all", bytes, bytes / rows * moved, [&](Pending::Impl& p) {
    Tensor from = p.input(in), into = p.output(out_tensor);
    std::vector<int64_t> a(in_splits.begin(), in_splits.end()), b(out_splits.begin(), out_splits.end());
    p.start(g.backend->alltoall_base(into, from, b, a));
  });
  return out;
}

void Group::barrier() {
  Impl& g = *impl_;
  if (g.n() == 1) return;
  Pending out;
  out.impl_ = begin(g, "barrier", 0, 0, [&](Pending::Impl& p) {
    c10d::BarrierOptions options;
    if (g.remote_reduction) options.device = g.device;
    p.start(g.backend->barrier(options));
  });
  out.wait();
}

World::World(int64_t rank, int64_t size, at::Device device, std::chrono::milliseconds timeout, Connect connect)
    : rank_(rank),
      size_(size),
      device_(device),
      timeout_(timeout),
      connect_(std::move(connect)),
      roll_call_(std::make_shared<RollCall>()),
      wire_(std::make_shared<Wire>()),
      trace_(std::make_shared<Trace>()) {}
World::~World() = default;

std::shared_ptr<World> World::single(at::Device device) {
  return std::make_shared<World>(0, 1, device, std::chrono::minutes(10), Connect());
}

std::shared_ptr<Group> World::group(const std::string& axis, const std::vector<int64_t>& ranks) {
  std::string name = axis;
  for (int64_t r : ranks) name += "." + std::to_string(r);
  std::shared_ptr<Group>& kept = groups_[name];
  if (kept) return kept;
  auto impl = std::make_unique<Group::Impl>();
  impl->place = std::make_shared<detail::Place>(detail::Place{axis, rank_, ranks, timeout_, roll_call_});
  auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) throw Error(ErrorCode::internal, "rank " + std::to_string(rank_) + " is not in group " + impl->place->name());
  impl->rank = mine - ranks.begin();
  impl->device = device_;
  impl->wire = wire_;
  impl->trace = trace_;
  if (ranks.size() > 1) {
    try {
      impl->backend = connect_(name, ranks);
    } catch (const c10::Error& e) {
      throw Error(ErrorCode::rendezvous_failed, "rank " + std::to_string(rank_) + " could not join group " + impl->place->name() + ": " +
                                                    std::string(e.what_without_backtrace()).substr(0, 300));
    } catch (const Error&) {
      throw;
    } catch (const std::exception& e) {
      throw Error(ErrorCode::rendezvous_failed,
                  "rank " + std::to_string(rank_) + " could not join group " + impl->place->name() + ": " + e.what());
    }
    impl->remote_reduction = impl->backend->getBackendName() == "nccl";
    if (impl->remote_reduction) {
      if (!watch_) watch_ = std::make_shared<detail::Watch>();
      watch_->guard(impl->backend);
      impl->watch = watch_;
    }
  }
  return kept = std::make_shared<Group>(std::move(impl));
}

void World::check() {
  if (watch_) watch_->check();
}

std::shared_ptr<Group> World::everyone() {
  std::vector<int64_t> all(static_cast<size_t>(size_));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  return group("world", all);
}

std::shared_ptr<Group> DeviceMesh::group(const std::string& axis) const { return world_->group(axis, mesh_.group(world_->rank(), axis)); }

}  // namespace meshwright
