// Launchers that name the rank in variables of their own, and environments that look like one
// without saying enough.
#include <algorithm>
#include <iterator>

#include "engine/launch/variables.h"
#include "meshwright/error.h"

namespace meshwright::launch {

const char* const kSetRankVariables =
    "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (LOCAL_RANK too where a host has several) "
    "from what the launcher provides";

namespace {

using Source = RankEnvironment::Source;

struct Launcher {
  Source source;
  Names names;
  const char* hosts;    // the number of hosts, where the launcher tells it
  const char* address;  // how to find the first host by hand
};

// The first whose rank and size are both there is taken, so those that set PMI's variables too
// stand before PMI.
constexpr Launcher kLaunchers[] = {
    {Source::openmpi,
     {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
      "OMPI_COMM_WORLD_LOCAL_SIZE"},
     nullptr,
     "mpirun -x MASTER_ADDR=HOST"},
    {Source::openmpi,
     {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
      "MV2_COMM_WORLD_LOCAL_SIZE"},
     nullptr,
     "mpirun_rsh ... MASTER_ADDR=HOST"},
    {Source::jsrun,
     {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK",
      "JSM_NAMESPACE_LOCAL_SIZE"},
     nullptr,
     "jsrun -E MASTER_ADDR=HOST"},
    {Source::flux,
     {"FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", nullptr},
     "FLUX_JOB_NNODES",
     "flux run --env=MASTER_ADDR=HOST"},
    {Source::pals,
     {"PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PMI_LOCAL_SIZE"},
     nullptr,
     "mpiexec --env MASTER_ADDR=HOST"},
    {Source::openmpi,
     {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
     nullptr,
     "mpiexec -genv MASTER_ADDR HOST"},
};
// Cray's PMI has other names for the local two.
constexpr Names kLocalPmi = {nullptr, nullptr, "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"};

// Variables that hold a place among several processes, set by launchers that do not tell how many
// there are. With WORLD_SIZE from the user they say which rank this is, where the launcher starts
// one process on each host.
constexpr const char* kRankAlone[] = {"PALS_RANKID", "PMIX_RANK", "ALPS_APP_PE",
                                      "JOB_COMPLETION_INDEX"};

// These variables, and others that say less: a place among processes, nodes or pods, from whatever
// sets them, and the variable that holds how many there are. Where that is 1 the process is known
// to be alone.
struct Place {
  const char *name, *size;
};
constexpr Place kPlaces[] = {{"JOB_COMPLETION_INDEX", nullptr},
                             {"PALS_RANKID", "PMI_SIZE"},
                             {"PMIX_RANK", nullptr},
                             {"ALPS_APP_PE", nullptr},
                             {"PET_NODE_RANK", "PET_NNODES"},
                             {"NODE_RANK", "NNODES"},
                             {"GROUP_RANK", "GROUP_WORLD_SIZE"},
                             {"LWS_WORKER_INDEX", "LWS_GROUP_SIZE"},
                             {"VC_TASK_INDEX", nullptr},
                             {"AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES"}};

RankEnvironment ranks_from(const Reader& read, const Launcher& launcher, Names names) {
  RankEnvironment e;
  e.source = launcher.source;
  e.rank = read.need(names.rank, 0, kMost, std::string(names.world) + " is");
  e.world_size = read.need(names.world, 1, kMost, std::string(names.rank) + " is");
  if (!read.has(names.local_rank) && read.has(kLocalPmi.local_rank)) {
    names.local_rank = kLocalPmi.local_rank;
    names.local_world = kLocalPmi.local_world;
  }
  e.local_rank = read.number(names.local_rank, 0, kMost).value_or(0);
  int64_t local_world =
      names.local_world ? read.number(names.local_world, 1, kMost).value_or(0) : 0;
  int64_t hosts = launcher.hosts ? read.number(launcher.hosts, 1, kMost).value_or(0) : 0;
  // Where only the number of hosts is told, the ranks are taken to be spread evenly.
  if (local_world == 0 && hosts > 0)
    local_world = std::max((e.world_size + hosts - 1) / hosts, e.local_rank + 1);
  e.local_world_told = local_world > 0 || e.world_size == 1;
  e.local_world_size = local_world > 0 ? local_world : e.world_size == 1 ? 1 : e.local_rank + 1;
  check(e, names);
  if (e.world_size == 1) return e;
  std::optional<std::string> addr = read.text("MASTER_ADDR");
  if (!addr && !e.one_host()) {
    std::string job = std::string("the ") + source_name(e.source) + " job";
    std::string why = local_world > 0
                          ? job + " spans hosts"
                          : "nothing says that all ranks of " + job + " are on one host";
    throw Error(ErrorCode::bad_rank_environment, "MASTER_ADDR is not set, and " + why)
        .help(
            std::string(
                "set MASTER_ADDR, on all ranks, to the host of rank 0 (127.0.0.1 on one host): ") +
            launcher.address)
        .help(
            "or unset the launcher's variables, and start local ranks with `meshwright train FILE "
            "--nproc N`");
  }
  e.master_addr = addr.value_or("127.0.0.1");
  // Two jobs on a host differ in the name that their launcher gave them.
  std::string job;
  for (const char* name :
       {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_ID", "HYDRA_JOBID", "FLUX_JOB_ID",
        "PALS_APID", "LSB_JOBID", "JSM_NAMESPACE_ID", "MPIRUN_ID"})
    job += read.text(name).value_or("");
  // MPICH gives none; it hands on its whole environment, so a batch system's is on all ranks.
  for (const char* name : {"SLURM_JOB_ID", "PBS_JOBID"})
    if (job.empty()) job = read.text(name).value_or("");
  uint32_t hash = 2166136261;
  for (char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619;
  e.master_port =
      static_cast<int>(read.number("MASTER_PORT", 1, 65535).value_or(port_of_job(read, hash)));
  return e;
}

// torchrun takes its arguments from PET_*, and Kubernetes operators set them for it. A container
// that starts this program itself is one process on each node, so the node is the rank.
std::optional<RankEnvironment> nodes(const Reader& read) {
  std::string count = read.text("PET_NNODES").value_or("1"),
              each = read.text("PET_NPROC_PER_NODE").value_or("1");
  if (count == "1") return std::nullopt;
  auto unknown = [](const std::string& what) {
    return Error(ErrorCode::unknown_launcher, what + ": each node would train alone")
        .help(
            "let torchrun start the ranks, which reads the PET_ variables: torchrun --no-python "
            "meshwright train FILE")
        .help(
            "with one process on each node set PET_NPROC_PER_NODE=1, PET_NNODES to a number, and "
            "PET_NODE_RANK on each")
        .help(kSetRankVariables);
  };
  if (count.find(':') != std::string::npos)
    throw unknown("PET_NNODES = " + count + " is a range, and torchrun does not run here");
  if (each != "1")
    throw unknown("PET_NNODES = " + count + " and PET_NPROC_PER_NODE = " + each +
                  ", but torchrun does not run here");
  int64_t world = *read.number("PET_NNODES", 1, kMost);
  if (!read.has("PET_NODE_RANK"))
    throw unknown("PET_NNODES = " + count + ", but PET_NODE_RANK is not set");
  RankEnvironment e;
  e.source = Source::nodes;
  e.world_size = world;
  e.rank = read.need("PET_NODE_RANK", 0, kMost, "PET_NNODES is");
  check(e, {"PET_NODE_RANK", "PET_NNODES", nullptr, nullptr});
  std::optional<std::string> addr = read.text("MASTER_ADDR");
  if (!addr) addr = read.text("PET_MASTER_ADDR");
  if (!addr)
    Reader::fail("PET_MASTER_ADDR",
                 "neither PET_MASTER_ADDR nor MASTER_ADDR is set, but PET_NNODES = " + count);
  e.master_addr = *addr;
  std::optional<int64_t> port = read.number("MASTER_PORT", 1, 65535);
  if (!port) port = read.number("PET_MASTER_PORT", 1, 65535);
  e.master_port = static_cast<int>(port.value_or(29500));  // torchrun's default
  return e;
}

// A launcher's rank among as many as WORLD_SIZE says.
std::optional<RankEnvironment> indexed(const Reader& read) {
  std::optional<int64_t> world = read.number("WORLD_SIZE", 1, kMost);
  if (!world || *world == 1) return std::nullopt;
  const auto* name = std::find_if(std::begin(kRankAlone), std::end(kRankAlone),
                                  [&](const char* n) { return read.has(n); });
  if (name == std::end(kRankAlone)) return std::nullopt;
  RankEnvironment e;
  e.source = Source::indexed;
  e.world_size = *world;
  e.rank = *read.number(*name, 0, kMost);
  const char* local = read.has("LOCAL_RANK") ? "LOCAL_RANK" : "PALS_LOCAL_RANKID";
  e.local_rank = read.number(local, 0, kMost).value_or(0);
  std::optional<int64_t> local_world = read.number("LOCAL_WORLD_SIZE", 1, kMost);
  e.local_world_told = local_world.has_value();
  e.local_world_size = local_world.value_or(e.local_rank + 1);
  check(e, {*name, "WORLD_SIZE", local, "LOCAL_WORLD_SIZE"});
  std::string because =
      "WORLD_SIZE = " + std::to_string(*world) + " and " + *name + " = " + std::to_string(e.rank);
  std::optional<std::string> addr = read.text("MASTER_ADDR");
  if (!addr) Reader::fail("MASTER_ADDR", "MASTER_ADDR is not set, but " + because);
  e.master_addr = *addr;
  e.master_port = static_cast<int>(read.need("MASTER_PORT", 1, 65535, because));
  return e;
}

}  // namespace

std::string name_of_launchers_job(const Reader& read) {
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "HYDRA_JOBID",
                           "FLUX_JOB_ID", "PALS_APID", "LSB_JOBID", "JSM_NAMESPACE_ID"})
    if (std::optional<std::string> value = read.text(name)) return *value;
  return "";
}

bool differs_from_launchers(const Reader& read, int64_t rank, int64_t world) {
  for (const Launcher& launcher : kLaunchers)
    if (std::optional<int64_t> theirs = read.number(launcher.names.rank, 0, kMost),
        size = read.number(launcher.names.world, 1, kMost);
        theirs && size && (*theirs != rank || *size != world))
      return true;
  return false;
}

std::optional<RankEnvironment> from_launchers(const Reader& read) {
  for (const Launcher& launcher : kLaunchers) {
    if (!read.has(launcher.names.rank)) continue;
    // PALS leaves the size to PMI, which may not be there.
    if (launcher.source == Source::pals && !read.has(launcher.names.world)) continue;
    RankEnvironment e = ranks_from(read, launcher, launcher.names);
    // `flux run -n1` may start a process that starts local ranks.
    if (e.world_size == 1 && launcher.source != Source::openmpi) return std::nullopt;
    return e;
  }
  if (std::optional<RankEnvironment> e = nodes(read)) return e;
  return indexed(read);
}

std::vector<std::string> unrecognised_launcher(const Lookup& environment) {
  Reader read(environment);
  std::vector<std::string> out;
  if (detect_ranks(environment)) return out;
  for (const Place& place : kPlaces) {
    if (place.size && read.text(place.size).value_or("") == "1") continue;
    if (std::optional<std::string> value = read.text(place.name))
      out.push_back(std::string(place.name) + " = " + *value);
  }
  return out;
}

}  // namespace meshwright::launch
