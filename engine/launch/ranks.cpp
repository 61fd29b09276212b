#include "engine/launch/ranks.h"

#include <cstdlib>

#include "engine/launch/hosts.h"
#include "engine/launch/variables.h"
#include "meshwright/error.h"

namespace meshwright::launch {

namespace {

using Source = RankEnvironment::Source;

bool is_loopback(const std::string& address) {
  return address == "localhost" || address.starts_with("127.") || address == "::1";
}

RankEnvironment plain(const Reader& read, Source source) {
  RankEnvironment e;
  e.source = source;
  e.rank = read.need("RANK", 0, kMost, "WORLD_SIZE is");
  e.world_size = read.need("WORLD_SIZE", 1, kMost, "RANK is");
  std::optional<int64_t> local_world = read.number("LOCAL_WORLD_SIZE", 1, kMost);
  std::optional<int64_t> local = read.number("LOCAL_RANK", 0, kMost);
  std::optional<std::string> addr = read.text("MASTER_ADDR");
  bool here = e.world_size == 1 || (addr && is_loopback(*addr));
  if (local && !local_world && here && *local >= e.world_size)
    Reader::fail("LOCAL_RANK", "LOCAL_RANK = " + std::to_string(*local) +
                                   " is not below WORLD_SIZE = " + std::to_string(e.world_size));
  e.local_world_told = local_world || here;
  e.local_world_size = local_world.value_or(here ? e.world_size : local.value_or(0) + 1);
  e.local_rank = local.value_or(here && !local_world ? e.rank : 0);
  check(e, kPlain);
  if (e.world_size > 1) {
    std::string because = "the job has " + std::to_string(e.world_size) + " ranks";
    if (!addr) Reader::fail("MASTER_ADDR", "MASTER_ADDR is not set, but " + because);
    e.master_addr = *addr;
    e.master_port = static_cast<int>(read.need("MASTER_PORT", 1, 65535, because));
  }
  return e;
}

// Step numbers from here on are the batch script, an interactive shell and the like: one process,
// not a rank.
constexpr int64_t kFirstSpecialStep = 0xfffffff0;

std::optional<RankEnvironment> slurm(const Reader& read) {
  std::optional<int64_t> step = read.number("SLURM_STEP_ID", 0, UINT32_MAX);
  if (!step || *step >= kFirstSpecialStep) return std::nullopt;
  const char* world = read.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  RankEnvironment e;
  e.source = Source::slurm;
  e.rank = read.need("SLURM_PROCID", 0, kMost, "SLURM_STEP_ID is");
  e.world_size = read.need(world, 1, kMost, "SLURM_STEP_ID is");
  // `srun --pty bash` is a shell, whose user may start local ranks.
  if (e.world_size == 1) return std::nullopt;
  // mpirun starts its daemons with srun, and their step is not that of the ranks.
  if (differs_from_launchers(read, e.rank, e.world_size)) return std::nullopt;
  std::string list = read.text("SLURM_STEP_NODELIST").value_or("");
  if (list.empty())
    Reader::fail("SLURM_STEP_NODELIST", "SLURM_STEP_NODELIST is not set, but SLURM_STEP_ID is");
  std::optional<std::vector<std::string>> hosts = expand_hosts(list);
  if (!hosts)
    Reader::fail("SLURM_STEP_NODELIST",
                 "SLURM_STEP_NODELIST = \"" + list + "\" is not a list of hosts");
  e.local_rank = read.need("SLURM_LOCALID", 0, kMost, "SLURM_STEP_ID is");
  e.local_world_told = hosts->size() == 1;
  e.local_world_size = e.local_world_told ? e.world_size : e.local_rank + 1;
  if (std::optional<std::string> tasks = read.text("SLURM_STEP_TASKS_PER_NODE");
      tasks && hosts->size() > 1) {
    std::optional<int64_t> here =
        tasks_of_host(*tasks, read.need("SLURM_NODEID", 0, kMost, "the job spans hosts"));
    if (!here)
      Reader::fail("SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE = \"" + *tasks +
                                                    "\" does not say how many tasks run here");
    e.local_world_told = true;
    e.local_world_size = *here;
  }
  check(e, {"SLURM_PROCID", world, "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"});
  std::optional<std::string> addr = read.text("MASTER_ADDR");
  // Tasks in the order of a file of hosts: rank 0 is anywhere, and the list of nodes is sorted.
  if (!addr && hosts->size() > 1 && read.text("SLURM_DISTRIBUTION") == "arbitrary")
    Reader::fail("MASTER_ADDR",
                 "MASTER_ADDR is not set, and with SLURM_DISTRIBUTION = arbitrary rank 0 may be on "
                 "any node of SLURM_STEP_NODELIST = " +
                     list);
  e.master_addr = addr.value_or(hosts->size() == 1 ? "127.0.0.1" : hosts->front());
  // The same on all ranks, another for each step.
  int64_t job = read.number("SLURM_JOB_ID", 0, INT64_MAX).value_or(0);
  e.master_port = static_cast<int>(
      read.number("MASTER_PORT", 1, 65535).value_or(port_of_job(read, job % 12000 * 97 + *step)));
  return e;
}

}  // namespace

Lookup process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
}

namespace {

std::optional<RankEnvironment> detect(const Reader& read) {
  if (read.has("MESHWRIGHT_LOCAL_JOB")) {
    RankEnvironment e = plain(read, Source::local);
    if (std::optional<int64_t> fd = read.number("MESHWRIGHT_STORE_FD", 3, 1 << 20);
        fd && e.rank == 0)
      e.listen_fd = static_cast<int>(*fd);
    e.restart = read.number("MESHWRIGHT_RESTART", 0, kMost).value_or(0);
    return e;
  }
  std::optional<std::string> agent = read.text("TORCHELASTIC_USE_AGENT_STORE");
  if (agent || read.has("TORCHELASTIC_RUN_ID")) {
    RankEnvironment e = plain(read, Source::torchrun);
    e.agent_store = agent && (*agent == "True" || *agent == "true" || *agent == "1");
    e.restart = read.number("TORCHELASTIC_RESTART_COUNT", 0, kMost).value_or(0);
    return e;
  }
  if (read.has("RANK")) return plain(read, Source::plain);
  if (std::optional<RankEnvironment> e = slurm(read)) return e;
  if (std::optional<RankEnvironment> e = from_launchers(read)) return e;
  // One process of several that does not know which must not train alone.
  if (std::optional<int64_t> world = read.number("WORLD_SIZE", 1, kMost); world && *world > 1)
    Reader::fail("RANK", "WORLD_SIZE = " + std::to_string(*world) + ", but RANK is not set");
  return std::nullopt;
}

std::string secret_of(const Reader& read) {
  constexpr size_t kLeast = 16;
  std::string out = read.text("MESHWRIGHT_JOB_SECRET").value_or("");
  if (!out.empty() && out.size() < kLeast)
    throw Error(ErrorCode::bad_rank_environment,
                "MESHWRIGHT_JOB_SECRET has " + std::to_string(out.size()) +
                    " characters: whoever sees the ranks meet could guess it")
        .help("make one of at least " + std::to_string(kLeast) +
              " characters for each job: export MESHWRIGHT_JOB_SECRET=$(openssl rand -hex 32)");
  return out;
}

// The same on all ranks, another for each job.
std::string job_of(const Reader& read, Source source) {
  auto text = [&](const char* name) { return read.text(name).value_or(""); };
  if (source == Source::torchrun) {
    const std::string id = text("TORCHELASTIC_RUN_ID");
    return id == "none" ? "" : id;  // torchrun's word for no id
  }
  if (source == Source::slurm) return text("SLURM_JOB_ID") + "." + text("SLURM_STEP_ID");
  return source == Source::openmpi || source == Source::jsrun || source == Source::flux ||
                 source == Source::pals
             ? name_of_launchers_job(read)
             : "";
}

}  // namespace

std::optional<RankEnvironment> detect_ranks(const Lookup& environment) {
  Reader read(environment);
  std::optional<RankEnvironment> out = detect(read);
  if (!out || out->world_size == 1) return out;
  out->secret = secret_of(read);
  out->ports = ports_of(read);
  out->ports.port_given = read.has("MASTER_PORT") || out->source == Source::nodes;
  out->job = job_of(read, out->source);
  return out;
}

const char* source_name(Source source) {
  switch (source) {
    case Source::single:
      return "one process";
    case Source::local:
      return "local ranks";
    case Source::torchrun:
      return "torchrun";
    case Source::plain:
      return "RANK and WORLD_SIZE";
    case Source::slurm:
      return "Slurm";
    case Source::openmpi:
      return "MPI";
    case Source::jsrun:
      return "jsrun";
    case Source::flux:
      return "Flux";
    case Source::pals:
      return "PALS";
    case Source::nodes:
      return "PET_NNODES and PET_NODE_RANK";
    case Source::indexed:
      return "WORLD_SIZE and the launcher's rank";
  }
  return "";
}

}  // namespace meshwright::launch
