// Which rank this process is: the variables of torchrun, of plain launchers, Slurm, Open MPI and
// other launchers.
//
//   std::optional<RankEnvironment> ranks = detect_ranks(process_environment());  // nullopt: nobody
//   launched us
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace meshwright::launch {

// Ports that the program listens on where it chooses them itself, both included; zeros: any that
// the kernel gives out.
struct PortRange {
  int first = 0, last = 0;
  bool port_given = false;  // somebody has chosen where the ranks meet
  bool limited() const { return first > 0; }
  int count() const { return last - first + 1; }
  // Where ranks meet, by the job's number, and where all else listens, which takes any port that is
  // free: halves, so that nothing of another job has the port where this one is to meet. Of less
  // than four ports each is the whole, and where somebody has chosen the port all is for the
  // others.
  PortRange to_meet() const {
    return count() < 4 ? *this : PortRange{first, first + count() / 2 - 1};
  }
  PortRange for_others() const {
    return port_given || count() < 4 ? *this : PortRange{first + count() / 2, last};
  }
};

struct RankEnvironment {
  enum class Source : uint8_t {
    single,
    local,
    torchrun,
    plain,
    slurm,
    openmpi,
    jsrun,
    flux,
    pals,
    nodes,
    indexed
  };
  Source source = Source::single;
  int64_t rank = 0, world_size = 1, local_rank = 0, local_world_size = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  bool agent_store = false;  // the launcher's agent serves a store; every rank is a client of it
  int64_t restart =
      0;  // how often the launcher (torchrun, or train --max-restarts) has started the ranks anew
  int listen_fd = -1;  // rank 0 of a local job: the listening socket it inherited
  bool local_world_told =
      true;  // else local_world_size is the least that it can be, and another number on each rank
  // What the ranks of a job prove to each other that they know (MESHWRIGHT_JOB_SECRET), and the
  // launcher's own name for the job. Empty: there is none.
  std::string secret, job;
  PortRange ports;  // MESHWRIGHT_PORT_RANGE ("29500-29599")
  // The ranks meet in the agent's store, which asks nobody for a secret. With a secret it says only
  // where the store of rank 0 is.
  bool meets_at_agent() const { return agent_store && secret.empty(); }
  // All ranks are known to be on this host. The launcher may not have said; connect_store() finds
  // out for the groups.
  bool one_host() const { return local_world_told && local_world_size == world_size; }
};

using Lookup = std::function<std::optional<std::string>(const std::string&)>;
Lookup process_environment();

// The ranks that run_local_ranks() started know it; then torchrun, plain (RANK and WORLD_SIZE),
// Slurm (inside an srun step of several tasks), Open MPI, MVAPICH, jsrun, Flux, PALS or PMI, the
// PET_* variables with one process on each node, and a launcher that tells the rank alone, where
// WORLD_SIZE is set; nullopt when none is there. Local: talks to nobody. Throws
// Error(bad_rank_environment) that names the variable at fault: one that is missing, is no number,
// does not agree with the others, a secret that is easily guessed, or a range of ports that is
// none; and Error(unknown_launcher) when the variables speak of several nodes and do not say which
// rank this process is.
std::optional<RankEnvironment> detect_ranks(const Lookup& environment);

// The variables ("JOB_COMPLETION_INDEX = 2") that a launcher of several processes seems to have
// set, although they do not say which rank of how many this process is. Empty when detect_ranks()
// finds ranks, and when no such variable is there.
std::vector<std::string> unrecognised_launcher(const Lookup& environment);
// The help for somebody whose launcher is not recognised: which variables to set.
extern const char* const kSetRankVariables;

const char* source_name(RankEnvironment::Source source);

// Slurm's short ways to write lists.

// "node[003-004,7],login" -> node003, node004, node7, login; several brackets multiply. At most
// 65536 names. nullopt when the list does not read so.
std::optional<std::vector<std::string>> expand_hosts(const std::string& list);

// "4(x2),3": tasks on each host, run-length encoded -> those of host `index` (from 0); nullopt when
// it does not read so or ends before.
std::optional<int64_t> tasks_of_host(const std::string& list, int64_t index);

}  // namespace meshwright::launch
