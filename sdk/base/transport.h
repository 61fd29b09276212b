// What carries the messages of a group: LibTorch's gloo and NCCL, or shared memory between the
// ranks of a host. A group counts, traces and watches above it and turns its failures into errors
// that name rank, group and operation; a transport only moves.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "meshwright/export.h"
#include "meshwright/parallel/group.h"

namespace c10d {
class Backend;
class Work;  // NOLINT(bugprone-forward-declaration-namespace): ours is another one
}  // namespace c10d

namespace meshwright {

// Asked by a rank whose wait timed out, to name the rank to blame; the answer may take a moment,
// and whoever gives it throws only the Error that ended another rank.
struct RollCall {
  std::vector<int64_t> ranks = {};  // of the group; {}: a connection broke, nobody is late
  std::string activity = {};  // what this rank waits in: "3F5 of the pipeline, which receives"
  int64_t order = -1;         // its place among what all ranks do; -1: where there is no such order
  bool routine = false;       // nobody is late: only whether a rank has ended; takes no time
};
struct RollAnswers {
  std::vector<int64_t> silent = {};  // of the ranks, those that do not answer
  // Where all do: the one that waits in what comes before all else; -1: not known, or this one.
  int64_t behind = -1;
  std::string activity = {};  // what that one waits in
};
using LivenessCheck = std::function<RollAnswers(const RollCall& call)>;

// Thrown by transports: a rank of the group has not answered within the timeout, or its process has
// ended. `peer` is its place in the group.
struct PeerLate {
  int64_t peer;
};
struct PeerGone {
  int64_t peer;
};

// One operation of a transport under way. Destroyed by the thread that started it.
class MESHWRIGHT_API Flight {
 public:
  virtual ~Flight();
  // Returns when this rank's part is done; on a device, when the current stream waits for it.
  // Called once. Throws PeerLate, PeerGone, or whatever LibTorch throws.
  virtual void wait() = 0;
  // Whether memory of other ranks may be read from wait() until this object goes, and which: of an
  // all-gather their shards, of a pairwise exchange what they packed for this rank.
  virtual bool lends() const { return false; }
  virtual at::Tensor peer(int64_t rank) const;
  // LibTorch's handles, for traces and for the watchdog of a device.
  virtual std::span<const c10::intrusive_ptr<c10d::Work>> handles() const { return {}; }
  // The place in the group of the only rank that this one waits for; -1: there are several.
  virtual int64_t awaited() const { return -1; }
};

// The operations of a Group, which has checked that there is something to move and that the group
// has at least two ranks.
class MESHWRIGHT_API Transport {
 public:
  using FlightPtr = std::unique_ptr<Flight>;
  virtual ~Transport();
  virtual bool has_native_reduce_scatter() const { return false; }
  // Whether wait() only orders the device's stream, so that a watchdog must look for failures and
  // call abort().
  virtual bool runs_on_device() const { return false; }
  virtual void abort() {}
  virtual FlightPtr all_gather(const at::Tensor& shard, const at::Tensor& whole) = 0;
  virtual FlightPtr pairwise_exchange(const at::Tensor& packed, const at::Tensor& received) = 0;
  virtual FlightPtr reduce_scatter(const at::Tensor& packed, const at::Tensor& shard) = 0;
  virtual FlightPtr all_reduce(const at::Tensor& tensor, ReduceOp op, bool control) = 0;
  virtual FlightPtr broadcast(const at::Tensor& tensor, int64_t root) = 0;
  virtual FlightPtr all_to_all(const at::Tensor& in, std::span<const int64_t> in_splits,
                               const at::Tensor& out, std::span<const int64_t> out_splits) = 0;
  virtual FlightPtr send_receive(std::span<const PeerMessage> messages) = 0;
  virtual FlightPtr barrier() = 0;
  // Bytes of memory that is registered for these operations; undefined where there is none.
  virtual at::Tensor registered_memory(int64_t bytes);
};

// The transport over a back end of LibTorch for tensors of `device`: NCCL's own operations for
// "nccl", those made for gloo for all others.
MESHWRIGHT_API std::shared_ptr<Transport> transport_over(c10::intrusive_ptr<c10d::Backend> backend,
                                                         at::Device device);
// The same over gloo with several connections between two ranks: a back end each, over one set of
// ranks, alike on all. What is large goes in as many parts at once, other messages take turns.
MESHWRIGHT_API std::shared_ptr<Transport> transport_over(
    std::vector<c10::intrusive_ptr<c10d::Backend>> connections);

// Makes the transport of one group; collective over its ranks. `name` is unique in the job.
using ConnectGroup = std::function<std::shared_ptr<Transport>(const std::string& name,
                                                              const std::vector<int64_t>& ranks)>;
// This process's place in a job whose groups are made by `connect`.
MESHWRIGHT_API std::shared_ptr<World> make_world(int64_t rank, int64_t size, at::Device device,
                                                 std::chrono::milliseconds timeout,
                                                 ConnectGroup connect);
// Who asks the ranks of a group which of them are there, when a wait has timed out.
MESHWRIGHT_API void set_liveness_check(World& world, LivenessCheck check);

// From now on errors call a socket address ("10.70.0.2", 35123) so: "rank 1 on gpu004". The latest
// name of an address counts; port 0 is none. Thread-safe.
MESHWRIGHT_API void name_peer(const std::string& address, int port, const std::string& name);

// Collective. All-reduces of up to so many bytes will be frequent: ranks of one host make room for
// them in shared memory.
MESHWRIGHT_API void expect_all_reduces(Group& group, int64_t bytes);

}  // namespace meshwright
