#include "meshwright/group.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <cstdio>

#include "meshwright/error.h"

namespace meshwright {

using at::Tensor;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

namespace {

std::string list_text(const std::vector<int64_t>& ranks) {
  std::string out = "[";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i == 8 && ranks.size() > 10) return out + ", ... " + std::to_string(ranks.back()) + "]";
    out += (i ? ", " : "") + std::to_string(ranks[i]);
  }
  return out + "]";
}

std::string size_text(int64_t bytes) {
  char text[32];
  if (bytes < 10000)
    std::snprintf(text, sizeof text, "%lld bytes", static_cast<long long>(bytes));
  else
    std::snprintf(text, sizeof text, "%.1f MB", static_cast<double>(bytes) / 1e6);
  return text;
}

}  // namespace

struct Group::Impl {
  std::string axis;
  int64_t world_rank = 0, rank = 0;
  std::vector<int64_t> ranks;
  c10::intrusive_ptr<c10d::Backend> backend;
  std::chrono::milliseconds timeout{};
  std::shared_ptr<Wire> wire;
  std::shared_ptr<Trace> trace;
  bool remote_reduction = false;
  int tag = 0;
  int64_t n() const { return static_cast<int64_t>(ranks.size()); }
};

struct Pending::Impl {
  std::vector<WorkPtr> works;
  const Group::Impl* group = nullptr;
  const char* op = "";
  int64_t bytes = 0, begin = 0;

  void start(WorkPtr work) {
    if (work) works.push_back(std::move(work));
  }
  [[noreturn]] void fail(const std::string& what) const {
    bool late = what.find("imed out") != std::string::npos || what.find("imeout") != std::string::npos;
    std::string place = std::string(op) + " of " + size_text(bytes) + " in group " + group->axis + " " + list_text(group->ranks);
    std::string who = "rank " + std::to_string(group->world_rank);
    if (late)
      throw Error(ErrorCode::collective_timeout,
                  who + " waited " + std::to_string(group->timeout.count() / 1000.0).substr(0, 6) + " s in vain for " + place)
          .key("dist_env.timeout_minutes")
          .help("look at the logs of the other ranks of the group: one of them hangs, is stopped or runs something else")
          .help("raise dist_env.timeout_minutes when a rank is only slow");
    throw Error(ErrorCode::collective_failed, who + ": " + place + " failed: " + what.substr(0, what.find('\n')))
        .help("look at the message of the rank that ended first");
  }
};

Pending::Pending() = default;
Pending::Pending(Pending&&) noexcept = default;
Pending& Pending::operator=(Pending&&) noexcept = default;
Pending::~Pending() = default;

void Pending::wait() {
  if (!impl_) return;
  std::unique_ptr<Impl> impl = std::move(impl_);
  try {
    for (WorkPtr& work : impl->works) work->wait();
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
const std::string& Group::axis() const { return impl_->axis; }
int64_t Group::rank() const { return impl_->rank; }
int64_t Group::size() const { return impl_->n(); }
const std::vector<int64_t>& Group::ranks() const { return impl_->ranks; }
bool Group::reduces_remotely() const { return impl_->remote_reduction; }

namespace {

const std::string kControl = "control";

// Starts one collective: counts it, runs `start` with the record, and turns errors of the start into ours.
template <class F>
std::unique_ptr<Pending::Impl> begin(const Group::Impl& g, const char* op, int64_t payload, int64_t sent, F&& start, bool control = false) {
  auto pending = std::make_unique<Pending::Impl>();
  pending->group = &g;
  pending->op = op;
  pending->bytes = payload;
  g.wire->add(control ? kControl : g.axis, op, sent);
  bool tracing = g.trace->enabled;
  pending->begin = tracing ? Trace::now() : 0;
  try {
    start(*pending);
  } catch (const c10::Error& e) {
    pending->fail(e.what_without_backtrace());
  } catch (const std::exception& e) {
    pending->fail(e.what());
  }
  if (tracing) {
    // A work without a future (send, recv) leaves no span of its own.
    for (WorkPtr& work : pending->works) {
      c10::intrusive_ptr<c10::ivalue::Future> future;
      try {
        future = work->getFuture();
      } catch (const std::exception&) {
      }
      if (!future) continue;
      Trace::Lane lane = std::string_view(op) == "all_gather" ? Trace::Lane::gather : Trace::Lane::reduce;
      future->addCallback([trace = g.trace, lane, name = g.axis + " " + op, start = pending->begin](c10::ivalue::Future&) {
        trace->span(lane, name, start, Trace::now());
      });
    }
  }
  return pending;
}

Tensor slot(const Tensor& flat, int64_t index, int64_t count) {
  int64_t each = flat.numel() / count;
  return flat.narrow(0, index * each, each);
}

}  // namespace

Pending Group::all_gather(const Tensor& shard, const Tensor& whole) {
  Impl& g = *impl_;
  Pending out;
  int64_t n = g.n();
  if (n == 1 || shard.numel() == 0) return out;
  int64_t bytes = static_cast<int64_t>(shard.nbytes());
  out.impl_ = begin(g, "all_gather", bytes * n, bytes * (n - 1), [&](Pending::Impl& p) {
    if (g.remote_reduction) {
      Tensor in = shard, all = whole;
      p.start(g.backend->_allgather_base(all, in));
    } else if (n == 2) {
      // Two ranks: one broadcast each is the cheapest that gloo has.
      for (int64_t r = 0; r < n; ++r) {
        std::vector<Tensor> one{r == g.rank ? shard : slot(whole, r, n)};
        c10d::BroadcastOptions options;
        options.rootRank = r;
        p.start(g.backend->broadcast(one, options));
      }
    } else {
      int tag = g.tag++;
      for (int64_t k = 1; k < n; ++k) {
        std::vector<Tensor> one{slot(whole, (g.rank + k) % n, n)};
        p.start(g.backend->recv(one, static_cast<int>((g.rank + k) % n), tag));
      }
      for (int64_t k = 1; k < n; ++k) {
        std::vector<Tensor> one{shard};
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
  int64_t bytes = static_cast<int64_t>(packed.nbytes());
  out.impl_ = begin(g, "reduce_scatter", bytes / (n - 1) * n, bytes, [&](Pending::Impl& p) {
    // Directly to each peer: least bytes and no copy of the own slot (gloo's all-to-all refuses to leave that out).
    int tag = g.tag++;
    auto place = [&](int64_t peer) { return peer < g.rank ? peer : peer - 1; };
    for (int64_t k = 1; k < n; ++k) {
      int64_t peer = (g.rank + n - k) % n;
      std::vector<Tensor> one{slot(received, place(peer), n - 1)};
      p.start(g.backend->recv(one, static_cast<int>(peer), tag));
    }
    for (int64_t k = 1; k < n; ++k) {
      int64_t peer = (g.rank + k) % n;
      std::vector<Tensor> one{slot(packed, place(peer), n - 1)};
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
    Tensor in = packed, into = shard;
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
        std::vector<Tensor> one{tensor};
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
    std::vector<Tensor> one{tensor};
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
    Tensor from = in, into = out_tensor;
    std::vector<int64_t> a(in_splits.begin(), in_splits.end()), b(out_splits.begin(), out_splits.end());
    p.start(g.backend->alltoall_base(into, from, b, a));
  });
  return out;
}

void Group::barrier() {
  Impl& g = *impl_;
  if (g.n() == 1) return;
  Pending out;
  out.impl_ = begin(g, "barrier", 0, 0, [&](Pending::Impl& p) { p.start(g.backend->barrier(c10d::BarrierOptions())); });
  out.wait();
}

World::World(int64_t rank, int64_t size, at::Device device, std::chrono::milliseconds timeout, Connect connect)
    : rank_(rank),
      size_(size),
      device_(device),
      timeout_(timeout),
      connect_(std::move(connect)),
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
  auto place = std::find(ranks.begin(), ranks.end(), rank_);
  if (place == ranks.end())
    throw Error(ErrorCode::internal, "rank " + std::to_string(rank_) + " is not in group " + axis + " " + list_text(ranks));
  auto impl = std::make_unique<Group::Impl>();
  impl->axis = axis;
  impl->world_rank = rank_;
  impl->rank = place - ranks.begin();
  impl->ranks = ranks;
  impl->timeout = timeout_;
  impl->wire = wire_;
  impl->trace = trace_;
  if (ranks.size() > 1) {
    try {
      impl->backend = connect_(name, ranks);
    } catch (const c10::Error& e) {
      throw Error(ErrorCode::rendezvous_failed, "rank " + std::to_string(rank_) + " could not join group " + axis + " " + list_text(ranks) +
                                                    ": " + std::string(e.what_without_backtrace()).substr(0, 300));
    } catch (const Error&) {
      throw;
    } catch (const std::exception& e) {
      throw Error(ErrorCode::rendezvous_failed,
                  "rank " + std::to_string(rank_) + " could not join group " + axis + " " + list_text(ranks) + ": " + e.what());
    }
    impl->remote_reduction = impl->backend->getBackendName() == "nccl";
  }
  return kept = std::make_shared<Group>(std::move(impl));
}

std::shared_ptr<Group> World::everyone() {
  std::vector<int64_t> all(static_cast<size_t>(size_));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  return group("world", all);
}

std::shared_ptr<Group> DeviceMesh::group(const std::string& axis) const { return world_->group(axis, mesh_.group(world_->rank(), axis)); }

}  // namespace meshwright
