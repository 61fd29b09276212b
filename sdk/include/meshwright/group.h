// Groups of ranks that communicate, above c10d: asynchronous collectives with a timeout that names rank, group and operation, and a
// count of every byte sent.
//
// All calls of a group are collective over its ranks and must be made in the same order on each. Tensors are contiguous, on the
// world's device, and must stay alive until Pending::wait(). A group of one rank does nothing and counts nothing. Not thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/export.h"
#include "meshwright/mesh.h"

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace meshwright {

namespace detail {
class Watch;
}

// What this rank sent, by axis and operation; and, while recording, each collective in order.
class MESHWRIGHT_API Wire {
 public:
  struct Row {
    std::string axis, op;
    int64_t count = 0, bytes = 0;
  };
  void add(const std::string& axis, const char* op, int64_t bytes);
  void clear();
  const std::vector<Row>& rows() const { return rows_; }    // sums since clear()
  const std::vector<Row>& order() const { return order_; }  // one row (count 1) each, while recording
  int64_t bytes() const;
  bool recording = false;

 private:
  std::vector<Row> rows_, order_;
};

// Spans for a Chrome trace (chrome://tracing, Perfetto). Off until `enabled`. Thread-safe.
class MESHWRIGHT_API Trace {
 public:
  enum class Lane : uint8_t { compute, gather, reduce, other };
  Trace();
  static int64_t now();  // microseconds of the steady clock
  void span(Lane lane, std::string name, int64_t begin, int64_t end);
  // The JSON array of events, `rank` as the process id.
  std::string json(int64_t rank) const;
  bool enabled = false;

 private:
  struct Span {
    Lane lane;
    std::string name;
    int64_t begin, end;
  };
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

class Group;

// A collective under way. wait() returns when this rank's part is done and its output may be read; the destructor does not wait.
class MESHWRIGHT_API Pending {
 public:
  Pending();
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();
  explicit operator bool() const { return impl_ != nullptr; }
  // Throws Error(collective_timeout | collective_failed). Later calls do nothing.
  void wait();
  // After wait() on a collective over shared memory: what a rank put there, read in place until release() or destruction.
  // all_gather: its shard; exchange: what it packed for us. Undefined otherwise.
  at::Tensor peer(int64_t rank) const;
  void release();

  struct Impl;

 private:
  friend class Group;
  void add_up();
  std::unique_ptr<Impl> impl_;
};

enum class ReduceOp : uint8_t { sum, max };

class MESHWRIGHT_API Group {
 public:
  struct Impl;
  explicit Group(std::unique_ptr<Impl> impl);
  ~Group();
  const std::string& axis() const;
  int64_t rank() const;  // place in the group
  int64_t size() const;
  const std::vector<int64_t>& ranks() const;  // global ranks
  // True when reduce_scatter() sums on the way (NCCL); false when exchange() and a sum of our own are cheaper (gloo).
  bool reduces_remotely() const;

  // Collective. Makes room in shared memory for messages of up to so many bytes, `ahead` gathers and one exchange under way at once, if
  // all ranks are on one host and on the CPU, and MESHWRIGHT_SHARED_MEMORY is not 0. Without room everything works as before. A rank's
  // room is gather_bytes * (ahead + 2) + exchange_bytes * 2. A room that is too small is replaced: nothing may be under way then.
  void reserve(int64_t gather_bytes, int64_t exchange_bytes, int64_t ahead);
  // Whether a message of that size goes through shared memory: then all_gather needs no `whole` and exchange no `received`, and
  // stage() gives the memory to pack into.
  bool maps_gather(int64_t bytes) const;
  bool maps_exchange(int64_t bytes) const;
  at::Tensor stage(int64_t count, at::ScalarType type);
  // Bytes of memory that the back end has registered for its collectives (NCCL). Undefined where it has none.
  at::Tensor registered_memory(int64_t bytes) const;

  // shard: [n], whole: [size * n] of the same dtype. Slot r of `whole` gets rank r's shard; the own slot is left unspecified.
  Pending all_gather(const at::Tensor& shard, const at::Tensor& whole);
  // packed, received: [(size - 1) * n], a slot for every other rank in rank order. Each gets what that rank packed for us.
  // Counted as the reduce-scatter it serves. With `received` given, packed may have a slot for this rank too ([size * n]), which stays.
  Pending exchange(const at::Tensor& packed, const at::Tensor& received);
  // packed: [size * n], shard: [n]: the sum over ranks of our slot.
  Pending reduce_scatter(const at::Tensor& packed, const at::Tensor& shard);
  // In shared memory where reserve() made room (maps_gather) and the op is a sum; the same bits on every rank.
  // `control`: a few scalars (norms, losses), counted under the axis "control" and not under the group's own.
  Pending all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum, bool control = false);
  Pending broadcast(const at::Tensor& tensor, int64_t root);
  // Memory in shared memory for this rank's next message of up to so many bytes (uint8, [bytes]); only where maps_gather(bytes), which
  // all ranks must find alike. exchange_staged() hands it over: Pending::peer(r) is then all that rank r staged, as bytes, and the
  // ranks know where in it their own part lies. `moved`: the bytes meant for other ranks. Counted as an all-to-all.
  at::Tensor stage_rows(int64_t bytes);
  Pending exchange_staged(int64_t moved);
  // Splits count rows of dim 0, one a rank.
  Pending all_to_all(const at::Tensor& in, std::span<const int64_t> in_splits, const at::Tensor& out, std::span<const int64_t> out_splits);
  void barrier();

 private:
  std::unique_ptr<Impl> impl_;
};

// This process's place in the job, and the maker of its groups.
class MESHWRIGHT_API World {
 public:
  // Makes the back end of one group; collective over its ranks. `name` is unique in the job.
  using Connect = std::function<c10::intrusive_ptr<c10d::Backend>(const std::string& name, const std::vector<int64_t>& ranks)>;
  World(int64_t rank, int64_t size, at::Device device, std::chrono::milliseconds timeout, Connect connect);
  // A world of one rank, without any network.
  static std::shared_ptr<World> single(at::Device device = at::kCPU);
  ~World();
  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  at::Device device() const { return device_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  // The group of these global ranks, this one among them; made at first use (collective over the group), then kept.
  std::shared_ptr<Group> group(const std::string& axis, const std::vector<int64_t>& ranks);
  std::shared_ptr<Group> everyone();
  // Throws Error(collective_timeout | collective_failed) when a collective on a device has failed or is late: there wait() only puts what
  // follows behind it, and the host hears of it here (and at the start of the next collective). On the CPU wait() throws itself.
  void check();
  // Who is to blame for a collective that did not end in time: those of a group's ranks that do not answer. Called by a rank that waited
  // in vain (with no ranks: by one whose connection broke), may take a moment, throws only the Error that ended another rank.
  using RollCall = std::function<std::vector<int64_t>(const std::vector<int64_t>& ranks)>;
  void set_roll_call(RollCall roll_call) { *roll_call_ = std::move(roll_call); }
  Wire& wire() { return *wire_; }
  Trace& trace() { return *trace_; }
  // What joining found worth telling the user.
  const std::vector<std::string>& notices() const { return notices_; }
  void notice(std::string text) { notices_.push_back(std::move(text)); }

 private:
  int64_t rank_, size_;
  at::Device device_;
  std::chrono::milliseconds timeout_;
  Connect connect_;
  std::shared_ptr<RollCall> roll_call_;  // shared with the groups
  std::shared_ptr<Wire> wire_;
  std::shared_ptr<Trace> trace_;
  std::shared_ptr<detail::Watch> watch_;
  std::vector<std::string> notices_;
  std::map<std::string, std::shared_ptr<Group>> groups_;
};

// A mesh with its groups: the group of a real or flattened axis through this rank.
class MESHWRIGHT_API DeviceMesh {
 public:
  DeviceMesh(Mesh mesh, std::shared_ptr<World> world) : mesh_(std::move(mesh)), world_(std::move(world)) {}
  const Mesh& mesh() const { return mesh_; }
  World& world() const { return *world_; }
  // Throws Error(no_such_axis).
  std::shared_ptr<Group> group(const std::string& axis) const;

 private:
  Mesh mesh_;
  std::shared_ptr<World> world_;
};

}  // namespace meshwright
