// What `doctor` looks at, and what it has to say of it.
#pragma once

#include <boost/describe/class.hpp>
#include <boost/json/object.hpp>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/job/plan.h"
#include "meshwright/error.h"

namespace meshwright::doctor {

// One thing that `doctor` has to say.

enum class Level : uint8_t {
  ok,
  note,     // worth knowing
  warning,  // runs will be slower, or may fail later
  fault     // a run would fail: the exit status is that of `code`
};
const char* level_name(Level level);

struct Finding {
  std::string topic;  // "memory"
  Level level = Level::ok;
  std::string text;
  std::string fix = {};                // what to do; empty where there is nothing to do
  std::optional<ErrorCode> code = {};  // of a fault
  // Not known, and why, instead of a guess: text is "n/a: ..." then.
  static Finding unknown(std::string topic, const std::string& why);
  bool operator==(const Finding&) const = default;
};
BOOST_DESCRIBE_STRUCT(Finding, (), (topic, level, text, fix, code))

Finding finding_of(std::string topic, const Error& error);  // a fault, with the error's first help

boost::json::object to_json(const Finding& finding);

// The fault whose code decides the exit status, the worst: what keeps ranks apart before what loses
// one, before what does not fit, before what only this job's files have against them. Of several
// alike the first. nullptr: there is none.
const Finding* worst_fault(const std::vector<Finding>& findings);

// What `doctor` measured, topic by topic, and what follows from it. The judgements are pure: tests
// make facts up.

struct Versions {
  std::string meshwright, libtorch, cuda, c10d;  // cuda: that LibTorch was built for
};
Finding judge(const Versions& facts);

struct Cores {
  int64_t machine = 0, usable = 0;   // usable: by the affinity of this process
  std::optional<double> quota = {};  // cores that the cgroup allows
  int64_t local_ranks = 1;           // of this job on this host
  int64_t threads = 1;               // a rank takes
};
Finding judge(const Cores& facts);

struct Memory {
  int64_t bytes = 0;  // 0: not known
  std::string limit;  // "this machine has"
  std::optional<int64_t> available = {};
  int64_t local_ranks = 1;
  std::optional<int64_t> kept = {}, peak = {};  // of one rank, by its plan
  std::string no_plan = {};                     // why there is none
};
Finding judge(const Memory& facts);

// A group over several hosts with as many of its ranks on each, two at least: on CPUs its ranks
// share memory on each host, and have two groups of sockets more (SDK: layered_over).
struct HostedGroup {
  int64_t hosts = 1, each = 1;
};
// Those of the groups, each told by its ranks, that are so. `host`: a number of each rank's host.
std::vector<HostedGroup> hosted_groups(const std::vector<std::vector<int64_t>>& groups,
                                       const std::vector<int64_t>& host);
// What so many ranks of a host reserve in shared memory when each is in such groups.
int64_t hosted_groups_need(const std::vector<HostedGroup>& groups, int64_t local_ranks);

// /dev/shm, where ranks of one host exchange what fits.
struct SharedMemory {
  std::string problem = {};  // it cannot be looked at
  int64_t total = 0, free = 0;
  bool off = false;  // MESHWRIGHT_SHARED_MEMORY=0
  int64_t local_ranks = 1;
  std::optional<int64_t> need = {};  // of this plan
  std::string no_need = {};          // why that is not known
  int64_t hosted = 0;                // of groups over hosts, beside it
};
Finding judge(const SharedMemory& facts);
// What the ranks of a sharded group on one host reserve there for units of at most so many bytes
// (SDK: ShardedModel::reserve): four gathers of a shard each and two exchanges of all shards but
// their own.
int64_t shared_memory_need(int64_t unit_bytes, int64_t ranks);

struct OpenFiles {
  int64_t limit = 0;  // the hard one: the program raises the soft one to it
  int64_t ranks = 1, axes = 1;
  std::vector<HostedGroup> hosted = {};
};
Finding judge(const OpenFiles& facts);

struct Disk {
  std::string folder;        // of runs
  std::string tried = {};    // where it was written: the folder, or what exists of its path
  std::string problem = {};  // why nothing could be written
  int64_t written = 0;       // bytes, synced
  double seconds = 0;        // that took
  std::optional<int64_t> free = {};
};
Finding judge(const Disk& facts);

struct Network {
  std::string host, interfaces;  // "lo (127.0.0.1), eth0 (10.70.0.1)"
  bool one_host = true;
  std::string address = {}, interface = {};  // where groups listen; empty: nothing was listening
  std::string because = {};                  // "GLOO_SOCKET_IFNAME names it"
  int mtu = 0;                               // of it; 0: not known
  std::string no_address = {};               // why none is known
};
Finding judge(const Network& facts);

struct HostName {
  std::string name, address = {};  // what the name resolves to
  std::string problem = {};
  double seconds = 0;
  bool one_host = true;
};
Finding judge(const HostName& facts);

struct Ports {
  std::string place = {};  // MASTER_ADDR:PORT where the ranks of a launcher have met
  int port = 0;
  bool one_host = true, local = false;  // local: the program starts the ranks, at any free port
  std::string problem = {};             // why nobody can listen there
  int first = 0, last = 0;              // those that the kernel gives out; 0: not known
  bool secret = true;                   // the ranks prove that they are of the job
  int range_first = 0, range_last = 0;  // MESHWRIGHT_PORT_RANGE; 0: there is none
  bool own_store = false;  // `place` is the launcher's store; rank 0 keeps one beside it
};
Finding judge(const Ports& facts);

// Of another host, against rank 0's.
struct ClockOffset {
  std::string host;
  double seconds = 0, error = 0;                       // positive: it is ahead
  std::optional<double> drift = {}, drift_error = {};  // seconds a second
};
struct Clock {
  std::optional<bool> synchronised = {};  // what the kernel says
  bool alone = true;                      // one host: nothing to compare with
  std::vector<ClockOffset> offsets = {};
};
Finding judge(const Clock& facts);

struct Devices {
  bool listed = false;       // the driver lists one
  std::string no_part = {};  // why the engine's CUDA part is of no use
  std::vector<std::string> names = {};
  int64_t local_ranks = 1;
  std::vector<std::pair<int64_t, int64_t>> apart = {};  // pairs without access to each other
};
Finding judge(const Devices& facts);

struct Nccl {
  std::string version = {};
  std::string unknown = {};  // why there is none
};
Finding judge(const Nccl& facts);

// The command line of `doctor`, for the ranks.

struct Request {
  std::string file;  // CONFIG.toml; empty: none, one flat group of all ranks
  std::vector<std::string> sets = {};
  std::string run_folder = {};  // empty: run.dir of the file
  bool json = false;
  int width = 80;
  bool colour = false, unicode = true;
};

// Measures what this host has. Local: talks to nobody.

Versions look_at_versions();
// `root` is another folder only in tests.
Cores look_at_cores(int64_t local_ranks, int64_t threads, const std::filesystem::path& root = "/");
// `plan` null: `why_none` says why.
Memory look_at_memory(int64_t local_ranks, const plan::JobPlan* plan, const std::string& why_none,
                      const std::filesystem::path& root = "/");
// `hosted`: the groups of a rank here.
SharedMemory look_at_shared_memory(int64_t local_ranks, bool one_host, const plan::JobPlan* plan,
                                   const std::string& why_none,
                                   const std::vector<HostedGroup>& hosted = {});
OpenFiles look_at_open_files(int64_t ranks, int64_t axes,
                             const std::vector<HostedGroup>& hosted = {});
// Writes up to 32 MiB, synced, for at most so long, into a file that has no name and so cannot stay
// behind. A folder that is not there is not made: the next one on its path that is there is tried.
Disk look_at_disk(const std::filesystem::path& folder, std::chrono::milliseconds longest);
// What the kernel says of the clock of this host.
Clock look_at_clock();
// Resolves this host's own name.
HostName look_at_host_name(bool one_host);
// The ports that the kernel gives out: first and last.
Ports look_at_ports(const std::filesystem::path& root = "/");

}  // namespace meshwright::doctor
