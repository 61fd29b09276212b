// Reading the variables that launchers set, with errors that name the variable at fault.
#include "engine/launch/ranks.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "meshwright/error.h"
#include "sdk/base/words.h"

namespace meshwright::launch {

const char* const kSetRankVariables =
    "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (LOCAL_RANK too where a host has several) "
    "from what the launcher provides";

namespace {

using Source = RankEnvironment::Source;

constexpr int64_t kMost = int64_t{1} << 22;
constexpr const char* kOrStartLocalRanks =
    "or unset the launcher's variables, and start local ranks with `meshwright train FILE --nproc "
    "N`";

[[noreturn]] void fail(const std::string& name, const std::string& what) {
  throw Error(ErrorCode::bad_rank_environment, what)
      .help("let the launcher set " + name)
      .help(kOrStartLocalRanks);
}

class Reader {
 public:
  explicit Reader(const Lookup& lookup) : lookup_(lookup) {}
  // An empty variable counts as one that is not set.
  std::optional<std::string> text(const std::string& name) const {
    std::optional<std::string> value = lookup_(name);
    return value && value->empty() ? std::nullopt : value;
  }
  bool has(const std::string& name) const { return text(name).has_value(); }
  std::optional<int64_t> number(const std::string& name, int64_t low, int64_t high) const {
    std::optional<std::string> value = text(name);
    if (!value) return std::nullopt;
    const std::optional<int64_t> out = text::to_number(*value);
    if (!out || *out < low || *out > high)
      fail(name, name + " = \"" + *value + "\" is not a whole number from " + std::to_string(low) +
                     " to " + std::to_string(high));
    return out;
  }
  int64_t need(const std::string& name, int64_t low, int64_t high,
               const std::string& because) const {
    if (std::optional<int64_t> value = number(name, low, high)) return *value;
    fail(name, name + " is not set, but " + because);
  }

 private:
  const Lookup& lookup_;
};

// MESHWRIGHT_PORT_RANGE. Throws Error(bad_rank_environment).
PortRange ports_of(const Reader& read) {
  const std::optional<std::string> value = read.text("MESHWRIGHT_PORT_RANGE");
  if (!value) return {};
  const size_t dash = value->find('-');
  const std::optional<int> first = text::to_number<int>(value->substr(0, dash)),
                           last = text::to_number<int>(
                               dash == std::string::npos ? "" : value->substr(dash + 1));
  if (first && last && *first >= 1 && *first <= *last && *last <= 65535) return {*first, *last};
  throw Error(ErrorCode::bad_rank_environment,
              "MESHWRIGHT_PORT_RANGE = \"" + *value +
                  "\" is no range of ports: two numbers from 1 to 65535, the lower first")
      .help("set MESHWRIGHT_PORT_RANGE, on all ranks, to such as 29500-29599, or unset it");
}

// Where the ranks of a job meet whose launcher names no MASTER_PORT, by the job's number: in the
// first half of the range, else below the ports that the kernel gives out.
int port_of_job(const Reader& read, int64_t number) {
  const PortRange ports = ports_of(read).to_meet();
  return static_cast<int>(ports.limited() ? ports.first + number % ports.count()
                                          : 20000 + number % 12000);
}

// The names that a launcher has for the four numbers; nullptr where it has none.
struct Names {
  const char *rank, *world, *local_rank, *local_world;
};

// Throws Error(bad_rank_environment) when the four numbers cannot be true together.
void check(const RankEnvironment& e, const Names& names) {
  auto below = [](const char* name, int64_t value, const char* limit_name, int64_t limit) {
    if (value >= limit)
      fail(name, std::string(name) + " = " + std::to_string(value) + " is not below " + limit_name +
                     " = " + std::to_string(limit));
  };
  below(names.rank, e.rank, names.world, e.world_size);
  const char* local_world = names.local_world ? names.local_world : "the number of local ranks";
  if (e.local_world_size > e.world_size)
    fail(local_world, std::string(local_world) + " = " + std::to_string(e.local_world_size) +
                          " is more than " + names.world + " = " + std::to_string(e.world_size));
  if (names.local_rank) below(names.local_rank, e.local_rank, local_world, e.local_world_size);
}

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
    fail("LOCAL_RANK", "LOCAL_RANK = " + std::to_string(*local) +
                           " is not below WORLD_SIZE = " + std::to_string(e.world_size));
  e.local_world_told = local_world || here;
  e.local_world_size = local_world.value_or(here ? e.world_size : local.value_or(0) + 1);
  e.local_rank = local.value_or(here && !local_world ? e.rank : 0);
  check(e, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  if (e.world_size > 1) {
    std::string because = "the job has " + std::to_string(e.world_size) + " ranks";
    if (!addr) fail("MASTER_ADDR", "MASTER_ADDR is not set, but " + because);
    e.master_addr = *addr;
    e.master_port = static_cast<int>(read.need("MASTER_PORT", 1, 65535, because));
  }
  return e;
}

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

// Whether one of these launchers says another rank or size: then the process was not started by the
// one that says `rank` and `world`.
bool differs_from_launchers(const Reader& read, int64_t rank, int64_t world) {
  for (const Launcher& launcher : kLaunchers)
    if (std::optional<int64_t> theirs = read.number(launcher.names.rank, 0, kMost),
        size = read.number(launcher.names.world, 1, kMost);
        theirs && size && (*theirs != rank || *size != world))
      return true;
  return false;
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
    fail("SLURM_STEP_NODELIST", "SLURM_STEP_NODELIST is not set, but SLURM_STEP_ID is");
  std::optional<std::vector<std::string>> hosts = expand_hosts(list);
  if (!hosts)
    fail("SLURM_STEP_NODELIST", "SLURM_STEP_NODELIST = \"" + list + "\" is not a list of hosts");
  e.local_rank = read.need("SLURM_LOCALID", 0, kMost, "SLURM_STEP_ID is");
  e.local_world_told = hosts->size() == 1;
  e.local_world_size = e.local_world_told ? e.world_size : e.local_rank + 1;
  if (std::optional<std::string> tasks = read.text("SLURM_STEP_TASKS_PER_NODE");
      tasks && hosts->size() > 1) {
    std::optional<int64_t> here =
        tasks_of_host(*tasks, read.need("SLURM_NODEID", 0, kMost, "the job spans hosts"));
    if (!here)
      fail("SLURM_STEP_TASKS_PER_NODE",
           "SLURM_STEP_TASKS_PER_NODE = \"" + *tasks + "\" does not say how many tasks run here");
    e.local_world_told = true;
    e.local_world_size = *here;
  }
  check(e, {"SLURM_PROCID", world, "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"});
  std::optional<std::string> addr = read.text("MASTER_ADDR");
  // Tasks in the order of a file of hosts: rank 0 is anywhere, and the list of nodes is sorted.
  if (!addr && hosts->size() > 1 && read.text("SLURM_DISTRIBUTION") == "arbitrary")
    fail("MASTER_ADDR",
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

RankEnvironment ranks_from(const Reader& read, const Launcher& launcher) {
  RankEnvironment e;
  Names names = launcher.names;
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
        .help(kOrStartLocalRanks);
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
    fail("PET_MASTER_ADDR",
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
  if (!addr) fail("MASTER_ADDR", "MASTER_ADDR is not set, but " + because);
  e.master_addr = *addr;
  e.master_port = static_cast<int>(read.need("MASTER_PORT", 1, 65535, because));
  return e;
}

// Launchers other than torchrun, plain variables and Slurm.
std::optional<RankEnvironment> from_launchers(const Reader& read) {
  for (const Launcher& launcher : kLaunchers) {
    if (!read.has(launcher.names.rank)) continue;
    // PALS leaves the size to PMI, which may not be there.
    if (launcher.source == Source::pals && !read.has(launcher.names.world)) continue;
    RankEnvironment e = ranks_from(read, launcher);
    // `flux run -n1` may start a process that starts local ranks.
    if (e.world_size == 1 && launcher.source != Source::openmpi) return std::nullopt;
    return e;
  }
  if (std::optional<RankEnvironment> e = nodes(read)) return e;
  return indexed(read);
}

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
    fail("RANK", "WORLD_SIZE = " + std::to_string(*world) + ", but RANK is not set");
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
  if (source == Source::openmpi || source == Source::jsrun || source == Source::flux ||
      source == Source::pals)
    for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "HYDRA_JOBID",
                             "FLUX_JOB_ID", "PALS_APID", "LSB_JOBID", "JSM_NAMESPACE_ID"})
      if (std::optional<std::string> value = read.text(name)) return *value;
  return "";
}

// Slurm's short ways to write lists.

constexpr size_t kMostHosts = 65536;

std::optional<int64_t> whole(std::string_view digits) {
  return digits.starts_with('-') || digits.size() >= 10 ? std::nullopt : text::to_number(digits);
}

// At the commas outside brackets; nullopt when brackets do not pair.
std::optional<std::vector<std::string>> split(std::string_view list) {
  std::vector<std::string> out(1);
  bool inside = false;
  for (char c : list) {
    if ((c == '[' && inside) || (c == ']' && !inside)) return std::nullopt;
    if (c == '[' || c == ']') inside = !inside;
    if (c == ',' && !inside)
      out.emplace_back();
    else
      out.back() += c;
  }
  return inside ? std::nullopt : std::optional(out);
}

// Appends what `item` stands for, each after `before`. False when it does not read so, or is too
// many.
bool expand(const std::string& before, std::string_view item, std::vector<std::string>& out) {
  size_t open = item.find('['), close = item.find(']');
  if (open == std::string_view::npos) {
    out.push_back(before + std::string(item));
    return out.size() <= kMostHosts;
  }
  std::string_view inside = item.substr(open + 1, close - open - 1), after = item.substr(close + 1);
  std::string stem = before + std::string(item.substr(0, open));
  for (size_t at = 0, end; at <= inside.size(); at = end + 1) {
    end = std::min(inside.find(',', at), inside.size());
    std::string_view range = inside.substr(at, end - at);
    size_t dash = range.find('-');
    std::string_view first = range.substr(0, dash);
    std::optional<int64_t> low = whole(first), high = dash == std::string_view::npos
                                                          ? low
                                                          : whole(range.substr(dash + 1));
    if (!low || !high || *high < *low) return false;
    for (int64_t i = *low; i <= *high; ++i) {
      std::string digits = std::to_string(i);
      if (digits.size() < first.size()) digits.insert(0, first.size() - digits.size(), '0');
      if (!expand(stem + digits, after, out)) return false;
    }
  }
  return true;
}

}  // namespace

Lookup process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
}

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
  constexpr const char* kNames[] = {"one process",
                                    "local ranks",
                                    "torchrun",
                                    "RANK and WORLD_SIZE",
                                    "Slurm",
                                    "MPI",
                                    "jsrun",
                                    "Flux",
                                    "PALS",
                                    "PET_NNODES and PET_NODE_RANK",
                                    "WORLD_SIZE and the launcher's rank"};
  static_assert(std::size(kNames) == static_cast<size_t>(Source::indexed) + 1);
  return kNames[static_cast<size_t>(source)];
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

std::optional<std::vector<std::string>> expand_hosts(const std::string& list) {
  std::optional<std::vector<std::string>> items = split(list);
  if (!items) return std::nullopt;
  std::vector<std::string> out;
  for (const std::string& item : *items)
    if (item.empty() || !expand("", item, out)) return std::nullopt;
  return out;
}

std::optional<int64_t> tasks_of_host(const std::string& list, int64_t index) {
  std::optional<std::vector<std::string>> items = split(list);
  if (!items) return std::nullopt;
  for (const std::string& item : *items) {
    size_t times = item.find("(x");
    std::optional<int64_t> tasks = whole(std::string_view(item).substr(0, times)), hosts = 1;
    if (times != std::string::npos)
      hosts = item.ends_with(')')
                  ? whole(std::string_view(item).substr(times + 2, item.size() - times - 3))
                  : std::nullopt;
    if (!tasks || !hosts || *tasks < 1) return std::nullopt;
    if (index < *hosts) return tasks;
    index -= *hosts;
  }
  return std::nullopt;
}

}  // namespace meshwright::launch
