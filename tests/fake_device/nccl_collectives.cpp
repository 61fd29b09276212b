// The collectives, in rounds of as much as a slot holds. Ranks must call the same one; who touches
// what is told to the race check.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "device.h"
#include "nccl_shared.h"

namespace fake_device {

namespace {

bool reduces(Kind kind) {
  return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter;
}

const char* operation_of(const Said& said) {
  constexpr std::array<const char*, 5> kOperations{"sum", "product", "max", "min", "average"};
  static_assert(ncclSum == 0 && ncclProd == 1 && ncclMax == 2 && ncclMin == 3 && ncclAvg == 4);
  return said.operation < kOperations.size() ? kOperations[said.operation] : "sum with a factor";
}

const char* type_of(const Said& said) {
  // By NCCL's numbers.
  constexpr std::array<const char*, 12> kTypes{"int8",    "uint8",    "int32",       "uint32",
                                               "int64",   "uint64",   "float16",     "float32",
                                               "float64", "bfloat16", "float8_e4m3", "float8_e5m2"};
  static_assert(ncclInt8 == 0 && ncclFloat32 == 7 && ncclFloat8e5m2 == 11);
  return said.type < kTypes.size() ? kTypes[said.type] : "?";
}

// All that ranks must agree on: "reduce of 4 float32 by max to rank 0".
std::string words_of(const Said& said) {
  const auto kind = static_cast<Kind>(said.kind);
  std::string out = name_of(kind);
  if (kind == Kind::split || kind == Kind::pairs) return out;
  out += " of " + std::to_string(said.count) + " " + type_of(said);
  if (reduces(kind)) out += std::string(" by ") + operation_of(said);
  if (kind == Kind::reduce) out += " to rank " + std::to_string(said.root);
  if (kind == Kind::broadcast) out += " from rank " + std::to_string(said.root);
  return out;
}

Said said_of(const Call& call) {
  // Sums with factors have the numbers that each rank has given them, and may have other factors.
  const auto operation = std::min(static_cast<uint32_t>(call.operation), uint32_t{ncclNumOps});
  return {static_cast<uint32_t>(call.kind), static_cast<uint32_t>(call.type),
          static_cast<uint32_t>(call.root), operation, call.count};
}

ncclResult_t agree_on(const Call& call) {
  if (call.kind == Kind::pairs) return ncclSuccess;  // only who has messages comes
  return agree(*call.comm, said_of(call));
}

// A communicator has one operation at a time: on another stream than the one before, an operation
// must come after that one.
void check_order(const Call& call) {
  ncclComm& comm = *call.comm;
  const Said now = said_of(call), before = std::exchange(comm.last, now);
  const FakeDevicePlace place = comm.last_place;
  if (fake_device_follows(call.stream, comm.device, &comm.last_place) != 0) return;
  fake_device_note(
      "fake device: nccl WRONG: rank %d of %d calls %s on stream %zu, and nothing orders it behind "
      "%s on stream %zu of the same communicator\n",
      comm.rank, comm.size, words_of(now).c_str(), comm.last_place.stream, words_of(before).c_str(),
      place.stream);
}

// One call under way.
class Running {
 public:
  explicit Running(const Call& call)
      : call_(call),
        comm_(*call.comm),
        what_(std::string("nccl ") + name_of(call.kind)),
        width_(width_of(call.type)),
        count_(call.count),
        ranks_(static_cast<size_t>(comm_.size)),
        rank_(static_cast<size_t>(comm_.rank)) {
    fake_device_begin(call.stream, comm_.device, what_.c_str());
    const bool exchanges = call.kind == Kind::all_to_all;
    const size_t bytes = count_ * width_,
                 in = exchanges || call.kind == Kind::reduce_scatter ? bytes * ranks_ : bytes;
    size_t out = exchanges || call.kind == Kind::all_gather ? bytes * ranks_ : bytes;
    if (call.kind == Kind::reduce && comm_.rank != call.root) out = 0;
    if (call.in == call.out)
      out = std::max(in, out);
    else
      check(call.in, in);
    check(call.out, out);
    for (const Transfer& transfer : call.transfers) check(transfer.data, transfer.bytes);
  }
  ~Running() { fake_device_end(); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  // Whether bytes move, and ranks wait for each other.
  static bool moves(const Call& call) {
    if (fake_device_computes() != 0) return true;
    const bool all_bring_all = call.kind == Kind::all_to_all || call.kind == Kind::reduce_scatter ||
                               call.kind == Kind::all_gather;
    const size_t of = all_bring_all ? static_cast<size_t>(call.comm->size) : 1;
    return call.kind != Kind::pairs && call.count * width_of(call.type) * of <= kFakeDeviceFewBytes;
  }

  // Tells the counters, too.
  bool run() {
    if (!run_it()) return false;
    fake_device_launched(what_.c_str(), call_.joins ? 0 : 1, read_, written_);
    return true;
  }

 private:
  bool run_it() {
    in_ = static_cast<const char*>(fake_device_view(call_.in));
    out_ = static_cast<char*>(fake_device_view(call_.out));
    switch (call_.kind) {
      case Kind::all_reduce:
      case Kind::reduce:
      case Kind::broadcast:
        return to_all_or_one();
      case Kind::all_gather:
        return gather();
      case Kind::reduce_scatter:
        return scatter();
      case Kind::all_to_all:
        return exchange();
      case Kind::pairs:
        return send_and_receive();
      case Kind::split:
        break;  // not by run()
    }
    return false;
  }
  void check(const void* p, size_t bytes) const {
    if (p == nullptr) return;
    if (fake_device_of(p) != comm_.device)
      fake_device_note("fake device: nccl WRONG: %s with memory %p that is not of device %d\n",
                       what_.c_str(), p, comm_.device);
    else
      check_registered(comm_, p, bytes, name_of(call_.kind));
  }
  void reads(const void* p, size_t bytes) {
    read_ += bytes;
    fake_device_access(call_.stream, comm_.device, p, bytes, 0, what_.c_str());
  }
  void writes(const void* p, size_t bytes) {
    written_ += bytes;
    fake_device_access(call_.stream, comm_.device, p, bytes, 1, what_.c_str());
  }
  char* slot(size_t rank) const { return comm_.slot(static_cast<int>(rank)); }

  // Rounds of at most `room` elements: fill(at, part) puts this rank's into its slot, and
  // take(at, part) fetches what it wants when all have done so.
  template <class Fill, class Take>
  bool rounds(size_t room, Fill fill, Take take) {
    if (!moves_) return true;
    for (size_t at = 0; at < count_; at += room) {
      const size_t part = std::min(count_ - at, room);
      fill(at, part);
      if (!comm_.barrier()) return false;
      take(at, part);
      if (!comm_.barrier()) return false;
    }
    return true;
  }

  bool to_all_or_one() {
    const bool is_root = comm_.rank == call_.root, casts = call_.kind == Kind::broadcast;
    const bool gets = call_.kind != Kind::reduce || is_root;
    reads(call_.in, count_ * width_);
    if (gets) writes(call_.out, count_ * width_);
    return rounds(
        kSlotBytes / width_,
        [&](size_t at, size_t part) {
          if (!casts || is_root) memcpy(slot(rank_), in_ + at * width_, part * width_);
        },
        [&](size_t at, size_t part) {
          if (casts)
            memcpy(out_ + at * width_, comm_.slot(call_.root), part * width_);
          else if (gets)
            reduce_slots(comm_, out_ + at * width_, 0, part, call_.type, call_.operation);
        });
  }

  bool gather() {
    const size_t bytes = count_ * width_;
    reads(call_.in, bytes);
    // In place: NCCL does not write the rank's own part.
    const auto* out = static_cast<const char*>(call_.out);
    if (call_.in == out + rank_ * bytes) {
      writes(out, rank_ * bytes);
      writes(out + (rank_ + 1) * bytes, (ranks_ - 1 - rank_) * bytes);
    } else {
      writes(out, ranks_ * bytes);
    }
    return rounds(
        kSlotBytes / width_,
        [&](size_t at, size_t part) { memcpy(slot(rank_), in_ + at * width_, part * width_); },
        [&](size_t at, size_t part) {
          for (size_t r = 0; r < ranks_; ++r)
            memcpy(out_ + (r * count_ + at) * width_, slot(r), part * width_);
        });
  }

  // A part for every rank, side by side in the slot.
  void fill_for_all(size_t at, size_t part) {
    for (size_t r = 0; r < ranks_; ++r)
      memcpy(slot(rank_) + r * part * width_, in_ + (r * count_ + at) * width_, part * width_);
  }

  bool scatter() {
    reads(call_.in, count_ * width_ * ranks_);
    writes(call_.out, count_ * width_);
    std::vector<char> kept(moves_ ? count_ * width_ : 0);  // in and out may overlap
    const bool ok = rounds(
        kSlotBytes / width_ / ranks_, [&](size_t at, size_t part) { fill_for_all(at, part); },
        [&](size_t at, size_t part) {
          reduce_slots(comm_, kept.data() + at * width_, rank_ * part, part, call_.type,
                       call_.operation);
        });
    if (ok && !kept.empty()) memcpy(out_, kept.data(), kept.size());
    return ok;
  }

  bool exchange() {
    reads(call_.in, count_ * width_ * ranks_);
    writes(call_.out, count_ * width_ * ranks_);
    return rounds(
        kSlotBytes / width_ / ranks_, [&](size_t at, size_t part) { fill_for_all(at, part); },
        [&](size_t at, size_t part) {
          for (size_t r = 0; r < ranks_; ++r)
            memcpy(out_ + (r * count_ + at) * width_, slot(r) + rank_ * part * width_,
                   part * width_);
        });
  }

  bool send_and_receive() {
    for (const Transfer& transfer : call_.transfers)
      transfer.send ? reads(transfer.data, transfer.bytes) : writes(transfer.data, transfer.bytes);
    return !moves_ || fake_device::send_and_receive(call_);
  }

  const Call& call_;
  const ncclComm& comm_;
  std::string what_;
  size_t width_, count_, ranks_, rank_;
  bool moves_ = moves(call_);
  size_t read_ = 0, written_ = 0;
  const char* in_ = nullptr;
  char* out_ = nullptr;
};

std::atomic<bool> hanging{false};

// Who reads on when the communicator is given up finds no number that was there before.
void leave_anything(const Call& call) {
  const ncclComm& comm = *call.comm;
  const bool root = comm.rank == call.root,
             gets = call.kind == Kind::reduce      ? root
                    : call.kind == Kind::broadcast ? !root
                                                   : call.kind != Kind::pairs,
             from_each = call.kind == Kind::all_gather || call.kind == Kind::all_to_all;
  const size_t parts = from_each ? static_cast<size_t>(comm.size) : 1;
  if (gets) memset(fake_device_view(call.out), 0xff, call.count * width_of(call.type) * parts);
  for (const Transfer& transfer : call.transfers)
    if (!transfer.send) memset(fake_device_view(transfer.data), 0xff, transfer.bytes);
}

// From here on no collective of this process ends, as on a device: the call comes back, and what
// waits for it waits until the communicator is given up. The other ranks wait for this one.
ncclResult_t hang(const Call& call) {
  if (!hanging.exchange(true)) {
    fake_device_note("fake device: nccl hangs from here, in %s\n", name_of(call.kind));
    stay_away_from_all();
  }
  call.comm->lost = true;
  leave_anything(call);
  fake_device_hang(call.stream, call.comm->device);
  return ncclSuccess;
}

// FAKE_DEVICE_HANG_AT=n: from this process's n-th call on, nothing ends. FAKE_DEVICE_HANG_IN: only
// calls of that name count.
bool hangs(const Call& call) {
  static const char *at = getenv("FAKE_DEVICE_HANG_AT"), *in = getenv("FAKE_DEVICE_HANG_IN");
  static std::atomic<int> calls{0};
  if (hanging) return true;
  if (at == nullptr || (in != nullptr && strcmp(in, name_of(call.kind)) != 0)) return false;
  return ++calls >= atoi(at);
}

// FAKE_DEVICE_NCCL_ERROR_AT=n: in this process's n-th call NCCL finds an error after the call has
// come back, as one of the network.
bool fails() {
  static const char* at = getenv("FAKE_DEVICE_NCCL_ERROR_AT");
  static std::atomic<int> calls{0};
  return at != nullptr && ++calls == atoi(at);
}

}  // namespace

const char* name_of(Kind kind) {
  constexpr std::array<const char*, 8> kNames{"all_reduce",       "all_gather", "reduce_scatter",
                                              "broadcast",        "reduce",     "all_to_all",
                                              "send and receive", "split"};
  return kNames.at(static_cast<size_t>(kind));
}

ncclResult_t agree(const ncclComm& comm, const Said& mine) {
  memcpy(comm.slot(comm.rank), &mine, sizeof mine);
  if (!comm.barrier()) return ncclRemoteError;
  bool same = true;
  for (int rank = 0; rank < comm.size; ++rank) {
    Said other;
    memcpy(&other, comm.slot(rank), sizeof other);
    if (other == mine) continue;
    same = false;
    fake_device_note("fake device: nccl WRONG: rank %d of %d calls %s, rank %d calls %s\n",
                     comm.rank, comm.size, words_of(mine).c_str(), rank, words_of(other).c_str());
  }
  if (!comm.barrier()) return ncclRemoteError;
  return same ? ncclSuccess : ncclInvalidUsage;
}

ncclResult_t run(const Call& call) {
  if (call.comm->aborted) return ncclInvalidUsage;
  if (fails()) call.comm->failed = true;
  if (call.comm->failed || hangs(call)) return hang(call);
  Running running(call);
  check_order(call);
  const ncclResult_t result = Running::moves(call) ? agree_on(call) : ncclSuccess;
  if (result == ncclSuccess && running.run()) return ncclSuccess;
  if (call.comm->lost) return hang(call);
  if (result != ncclSuccess) return result;
  return call.comm->aborted ? ncclRemoteError : ncclInvalidUsage;
}

}  // namespace fake_device
