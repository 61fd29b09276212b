// Groups of ranks that communicate, above c10d: asynchronous collectives with a timeout that names
// rank, group and operation, and a count of every byte sent.
//
// All calls of a group are collective over its ranks and must be made in the same order on each.
// Tensors are contiguous, on the world's device, and must stay alive until Work::wait(). A group of
// one rank does nothing and counts nothing. Not thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/export.h"
#include "meshwright/mesh.h"

namespace meshwright {

class Flight;
class TrafficCounter;  // meshwright/parallel/testing.h

namespace detail {
struct GroupAccess;
}  // namespace detail

// Spans for a Chrome trace (chrome://tracing, Perfetto). Off until `enabled`. Thread-safe.
class MESHWRIGHT_API Trace {
 public:
  enum class Lane : uint8_t { compute, gather, reduce, other };
  explicit Trace(at::Device device = at::kCPU);
  static int64_t now();  // microseconds of the steady clock
  // A moment, never 0: on the CPU now(); on a device, below 0, when its current stream comes here.
  int64_t mark();
  // A bar between two moments, which begins at the last of its beginnings.
  void span(Lane lane, std::string name, int64_t begin, int64_t end, int64_t also_begins = 0);
  // The JSON array of events, `rank` as the process id.
  std::string json(int64_t rank) const;
  std::atomic<bool> enabled = false;

 private:
  struct Span {
    Lane lane;
    std::string name;
    int64_t begin, end, also_begins;
  };
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

// A collective under way. wait() returns when this rank's part is done and its output may be read;
// the destructor does not wait.
class MESHWRIGHT_API Work {
 public:
  Work();
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();
  explicit operator bool() const { return flight_ != nullptr; }
  // Throws Error(collective_timeout | collective_failed). Later calls do nothing.
  void wait();

 private:
  friend struct detail::GroupAccess;
  MESHWRIGHT_LOCAL void show(int64_t waited_from) const;
  std::unique_ptr<Flight> flight_;
  const class Group* group_ = nullptr;
  const char* op_ = "";
  int64_t bytes_ = 0, begin_ = 0;  // begin_: where the log of collectives has it
  Trace::Lane lane_ = Trace::Lane::reduce;
  bool shown_ = false;  // LibTorch calls back at its end
};

enum class ReduceOp : uint8_t { sum, max };

// A tensor for, or from, the rank at the place `peer` of a group.
struct PeerMessage {
  enum class Way : uint8_t { send, receive };
  Way way = Way::send;
  int64_t peer = 0;
  at::Tensor tensor;
};

class MESHWRIGHT_API Group {
 public:
  struct Impl;
  explicit Group(std::unique_ptr<Impl> impl);
  ~Group();
  const std::string& axis() const;
  int64_t rank() const;  // place in the group
  int64_t size() const;
  const std::vector<int64_t>& ranks() const;  // global ranks
  // True when reduce_scatter() sums on the way (NCCL; groups over several hosts that share memory
  // inside); false when pairwise_exchange() and a sum of our own are cheaper (gloo alone).
  bool has_native_reduce_scatter() const;

  // shard: [n], whole: [size * n] of the same dtype. Slot r of `whole` gets rank r's shard; the own
  // slot is left unspecified.
  Work all_gather(const at::Tensor& shard, const at::Tensor& whole);
  // packed, received: [(size - 1) * n], a slot for every other rank in rank order. Each gets what
  // that rank packed for us. Counted as the reduce-scatter it serves. With `received` given, packed
  // may have a slot for this rank too ([size * n]), which stays.
  Work pairwise_exchange(const at::Tensor& packed, const at::Tensor& received);
  // packed: [size * n], shard: [n]: the sum over ranks of our slot.
  Work reduce_scatter(const at::Tensor& packed, const at::Tensor& shard);
  // Bitwise identical on every rank. `control`: a few scalars (norms, losses), counted under the
  // axis "control" and not under the group's own.
  Work all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum, bool control = false);
  Work broadcast(const at::Tensor& tensor, int64_t root);
  // Splits count rows of dim 0, one split per rank.
  Work all_to_all(const at::Tensor& in, std::span<const int64_t> in_splits, const at::Tensor& out,
                  std::span<const int64_t> out_splits);
  // Messages from rank to rank, all under way at once, so that no order among them can block (NCCL:
  // one group call). Only the ranks that have messages for each other take part. Messages of one
  // rank for another arrive in the order they were sent; both sides give the same number of
  // elements and dtype. Where there are several, their tensors must differ. Throws Error(internal)
  // for a message to oneself.
  Work send_receive(std::span<const PeerMessage> messages);
  void barrier();

 private:
  friend struct detail::GroupAccess;
  std::unique_ptr<Impl> impl_;
};

// This process's place in the job, and the maker of its groups.
class MESHWRIGHT_API World {
 public:
  struct Impl;
  explicit World(std::unique_ptr<Impl> impl);
  // A world of one rank, without any network.
  static std::shared_ptr<World> single(at::Device device = at::kCPU);
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World();
  int64_t rank() const;
  int64_t size() const;
  at::Device device() const;
  std::chrono::milliseconds timeout() const;
  // The group of these global ranks, this one among them; made at first use (collective over the
  // group), then kept.
  std::shared_ptr<Group> group(const std::string& axis, const std::vector<int64_t>& ranks);
  std::shared_ptr<Group> everyone();
  // Throws Error(collective_timeout | collective_failed) when a collective on a device has failed
  // or is late: there wait() only puts what follows behind it, and the host hears of it here (and
  // at the start of the next collective). On the CPU wait() throws itself.
  void check();
  TrafficCounter& traffic();
  Trace& trace();
  // What joining found worth telling the user.
  const std::vector<std::string>& notices() const;
  void notice(std::string text);

 private:
  friend struct detail::GroupAccess;
  std::unique_ptr<Impl> impl_;
};

// A mesh with its groups: the group of a real or flattened axis through this rank.
class MESHWRIGHT_API DeviceMesh {
 public:
  DeviceMesh(Mesh mesh, std::shared_ptr<World> world)
      : mesh_(std::move(mesh)), world_(std::move(world)) {}
  const Mesh& mesh() const { return mesh_; }
  World& world() const { return *world_; }
  // Throws Error(no_such_axis).
  std::shared_ptr<Group> group(const std::string& axis) const;

 private:
  Mesh mesh_;
  std::shared_ptr<World> world_;
  std::shared_ptr<const Later> later_;  // room for what later versions add
};

}  // namespace meshwright
