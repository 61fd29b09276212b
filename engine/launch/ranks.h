// Which rank this process is: the variables of torchrun, of plain launchers, Slurm and Open MPI.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace meshwright::launch {

struct RankEnvironment {
  enum class Source : uint8_t { single, local, torchrun, plain, slurm, openmpi };
  Source source = Source::single;
  int64_t rank = 0, world_size = 1, local_rank = 0, local_world_size = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  bool agent_store = false;  // the launcher's agent serves the store; every rank is a client
  int listen_fd = -1;        // rank 0 of a local job: the listening socket it inherited
  bool one_host() const { return local_world_size == world_size; }
};

using Lookup = std::function<std::optional<std::string>(const std::string&)>;
Lookup process_environment();

// In the order torchrun, plain (RANK and WORLD_SIZE), Slurm (inside an srun step), Open MPI or PMI; nullopt when none is there. Throws
// Error(bad_rank_environment) that names the variable at fault.
std::optional<RankEnvironment> detect_ranks(const Lookup& environment);

// "node[003-004,7],login" -> node003, node004, node7, login. At most 65536 names. Throws Error(bad_rank_environment).
std::vector<std::string> expand_hosts(const std::string& list);

const char* source_name(RankEnvironment::Source source);

}  // namespace meshwright::launch
