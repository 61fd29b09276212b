// Environments of launchers, and the ranks they mean. Long because each launcher is a row of them.
#include "engine/launch/ranks.h"

#include <doctest/doctest.h>

#include <map>
#include <set>

#include "meshwright/error.h"
#include "sdk/base/words.h"

using namespace meshwright;
using namespace meshwright::launch;
using Source = RankEnvironment::Source;

namespace {

using Variables = std::map<std::string, std::string>;

Lookup in(const Variables& variables) {
  return [&variables](const std::string& name) -> std::optional<std::string> {
    auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}
std::optional<RankEnvironment> detect(const Variables& variables) {
  return detect_ranks(in(variables));
}
std::vector<std::string> unrecognised(const Variables& variables) {
  return unrecognised_launcher(in(variables));
}

// "RANK=0 WORLD_SIZE=2"
Variables of(const char* text) {
  Variables out;
  for (const std::string& word : text::split_names(text, ' '))
    out[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
  return out;
}

// `base` with some changed; "-" takes one away.
Variables with(Variables base, const Variables& changes) {
  for (const auto& [name, value] : changes) base[name] = value;
  std::erase_if(base, [](const auto& one) { return one.second == "-"; });
  return base;
}
Variables with(const Variables& base, const char* changes) { return with(base, of(changes)); }

const Variables kPlain = of("RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=head MASTER_PORT=1234");
const Variables kTorchrun = with(kPlain,
                                 "LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=none "
                                 "TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RESTART_COUNT=2");
const Variables kSlurm =
    of("SLURM_STEP_ID=0 SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_LOCALID=1 SLURM_NODEID=1 "
       "SLURM_STEP_NODELIST=gpu[003-004] SLURM_STEP_TASKS_PER_NODE=4(x2) SLURM_JOB_ID=7001");
const Variables kMpi =
    of("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 "
       "OMPI_COMM_WORLD_LOCAL_SIZE=4");
const Variables kPmi =
    of("PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2 MASTER_ADDR=head");

const Variables kMvapich =
    of("MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=4 MV2_COMM_WORLD_LOCAL_RANK=1 "
       "MV2_COMM_WORLD_LOCAL_SIZE=4");
const Variables kJsrun =
    of("JSM_NAMESPACE_RANK=5 JSM_NAMESPACE_SIZE=12 JSM_NAMESPACE_LOCAL_RANK=5 "
       "JSM_NAMESPACE_LOCAL_SIZE=6 MASTER_ADDR=head");
const Variables kFlux =
    of("FLUX_TASK_RANK=5 FLUX_JOB_SIZE=8 FLUX_TASK_LOCAL_ID=1 FLUX_JOB_NNODES=2 "
       "FLUX_JOB_ID=1234567 MASTER_ADDR=head");
const Variables kPals =
    of("PALS_RANKID=5 PALS_LOCAL_RANKID=1 PALS_NODEID=1 PMI_RANK=5 PMI_SIZE=8 PMI_LOCAL_SIZE=4 "
       "MASTER_ADDR=head");
const Variables kPet = of(
    "PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=1 PET_MASTER_ADDR=head PET_MASTER_PORT=23456");
const Variables kIndexed =
    of("JOB_COMPLETION_INDEX=2 WORLD_SIZE=4 MASTER_ADDR=job-0.job MASTER_PORT=1234");

}  // namespace

TEST_CASE("ranks as launchers tell them") {
  struct Row {
    const char* what;
    Variables variables;
    Source source;
    const char* ranks;  // rank/world local/local_world address:port; own: one of our own making
  };
  const Row rows[] = {
      {"plain", kPlain, Source::plain, "3/8 1/2 head:1234"},
      {"plain, as PyTorch's examples: no local rank", with(kPlain, "LOCAL_RANK=-"), Source::plain,
       "3/8 0/1 head:1234"},
      {"plain on one host", with(kPlain, "LOCAL_RANK=- MASTER_ADDR=127.0.0.1"), Source::plain,
       "3/8 3/8 127.0.0.1:1234"},
      {"plain on localhost", with(kPlain, "MASTER_ADDR=localhost"), Source::plain,
       "3/8 1/8 localhost:1234"},
      {"plain, alone", of("RANK=0 WORLD_SIZE=1"), Source::plain, "0/1 0/1 127.0.0.1:0"},
      {"plain over an MPI environment", with(kMpi, kPlain), Source::plain, "3/8 1/2 head:1234"},
      {"torchrun", kTorchrun, Source::torchrun, "3/8 1/2 head:1234"},
      {"torchrun inside a Slurm step", with(kSlurm, kTorchrun), Source::torchrun,
       "3/8 1/2 head:1234"},
      {"Slurm", kSlurm, Source::slurm, "5/8 1/4 gpu003:own"},
      {"Slurm, uneven hosts", with(kSlurm, "SLURM_STEP_TASKS_PER_NODE=5,3"), Source::slurm,
       "5/8 1/3 gpu003:own"},
      {"Slurm, one host", with(kSlurm, "SLURM_STEP_NODELIST=login SLURM_LOCALID=5"), Source::slurm,
       "5/8 5/8 127.0.0.1:own"},
      {"Slurm, the step's own size", with(kSlurm, "SLURM_STEP_NUM_TASKS=6 SLURM_NTASKS=99"),
       Source::slurm, "5/6 1/4 gpu003:own"},
      {"Slurm, master given", with(kSlurm, "MASTER_ADDR=other MASTER_PORT=77"), Source::slurm,
       "5/8 1/4 other:77"},
      {"Slurm, by a file of hosts, master given",
       with(kSlurm, "SLURM_DISTRIBUTION=arbitrary MASTER_ADDR=other"), Source::slurm,
       "5/8 1/4 other:own"},
      {"Slurm, in blocks", with(kSlurm, "SLURM_DISTRIBUTION=block"), Source::slurm,
       "5/8 1/4 gpu003:own"},
      {"Slurm, world size exported", with(kSlurm, "WORLD_SIZE=8"), Source::slurm,
       "5/8 1/4 gpu003:own"},
      {"Open MPI", kMpi, Source::openmpi, "1/4 1/4 127.0.0.1:own"},
      {"Open MPI over hosts", with(kMpi, "OMPI_COMM_WORLD_LOCAL_SIZE=2 MASTER_ADDR=head"),
       Source::openmpi, "1/4 1/2 head:own"},
      {"mpirun inside a Slurm allocation, whose daemons are the step", with(kSlurm, kMpi),
       Source::openmpi, "1/4 1/4 127.0.0.1:own"},
      {"srun with PMI", with(kSlurm, "PMI_RANK=5 PMI_SIZE=8"), Source::slurm, "5/8 1/4 gpu003:own"},
      {"MPICH inside a Slurm allocation, whose proxies are the step",
       with(kSlurm,
            with(kPmi, "SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0")),
       Source::openmpi, "2/4 0/2 head:own"},
      {"MPICH", kPmi, Source::openmpi, "2/4 0/2 head:own"},
      {"MVAPICH", kMvapich, Source::openmpi, "1/4 1/4 127.0.0.1:own"},
      {"jsrun", kJsrun, Source::jsrun, "5/12 5/6 head:own"},
      {"jsrun, one host", with(kJsrun, "JSM_NAMESPACE_LOCAL_SIZE=12 MASTER_ADDR=-"), Source::jsrun,
       "5/12 5/12 127.0.0.1:own"},
      {"jsrun, with the variables of its MPI",
       with(kJsrun, "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=12"), Source::openmpi,
       "5/12 0/1 head:own"},
      {"Flux", kFlux, Source::flux, "5/8 1/4 head:own"},
      {"Flux, which also plays PMI", with(kFlux, "PMI_RANK=5 PMI_SIZE=8"), Source::flux,
       "5/8 1/4 head:own"},
      {"Flux, one node", with(kFlux, "FLUX_JOB_NNODES=1 FLUX_TASK_LOCAL_ID=5 MASTER_ADDR=-"),
       Source::flux, "5/8 5/8 127.0.0.1:own"},
      {"Flux, uneven nodes", with(kFlux, "FLUX_TASK_LOCAL_ID=5"), Source::flux, "5/8 5/6 head:own"},
      {"Flux inside a Slurm step of its brokers",
       with(kSlurm, with(kFlux, "SLURM_PROCID=1 SLURM_NTASKS=2")), Source::flux,
       "5/8 1/4 head:own"},
      {"PALS", kPals, Source::pals, "5/8 1/4 head:own"},
      {"PALS without PMI, WORLD_SIZE from the user",
       of("PALS_RANKID=5 PALS_LOCAL_RANKID=1 WORLD_SIZE=8 MASTER_ADDR=head MASTER_PORT=77"),
       Source::indexed, "5/8 1/2 head:77"},
      {"Cray's PMI",
       with(kPmi, "MPI_LOCALRANKID=- MPI_LOCALNRANKS=- PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=2"),
       Source::openmpi, "2/4 1/2 head:own"},
      {"PET, one process on each node", kPet, Source::nodes, "1/2 0/1 head:23456"},
      {"PET, nothing said of processes and port",
       with(kPet, "PET_NPROC_PER_NODE=- PET_MASTER_PORT=-"), Source::nodes, "1/2 0/1 head:29500"},
      {"PET, master from elsewhere", with(kPet, "MASTER_ADDR=other MASTER_PORT=77"), Source::nodes,
       "1/2 0/1 other:77"},
      {"PET below torchrun", with(kTorchrun, with(kPet, "PET_NPROC_PER_NODE=auto")),
       Source::torchrun, "3/8 1/2 head:1234"},
      {"PET beside RANK, as a PyTorchJob sets both",
       with(kPlain, with(kPet, "PET_NPROC_PER_NODE=auto")), Source::plain, "3/8 1/2 head:1234"},
      {"an indexed job with a size", kIndexed, Source::indexed, "2/4 0/1 job-0.job:1234"},
      {"a rank of our own", with(kTorchrun, "MESHWRIGHT_LOCAL_JOB=99 MESHWRIGHT_RESTART=2"),
       Source::local, "3/8 1/2 head:1234"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    std::optional<RankEnvironment> e = detect(row.variables);
    REQUIRE(e);
    CHECK(e->source == row.source);
    const bool own = std::string(row.ranks).ends_with(":own");
    CHECK(std::to_string(e->rank) + "/" + std::to_string(e->world_size) + " " +
              std::to_string(e->local_rank) + "/" + std::to_string(e->local_world_size) + " " +
              e->master_addr + ":" + (own ? "own" : std::to_string(e->master_port)) ==
          row.ranks);
    if (own) CHECK((e->master_port >= 20000 && e->master_port < 32000));
    CHECK(e->agent_store == (row.source == Source::torchrun));
    CHECK(e->restart == (row.source == Source::torchrun || row.source == Source::local ? 2 : 0));
    CHECK(e->one_host() == (e->local_world_told && e->local_world_size == e->world_size));
    CHECK(e->listen_fd == -1);
  }
}

TEST_CASE("that all ranks are on one host is known to all of them or to none") {
  struct Row {
    const char* what;
    Variables variables;
    bool one_host;
  };
  for (const auto& [rank, local] : {std::pair("0", "0"), std::pair("1", "1")}) {
    const Variables plain = {
        {"RANK", rank}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node7"}, {"MASTER_PORT", "1234"}};
    const Variables here = with(plain, "MASTER_ADDR=127.0.0.1"),
                    meets = {{"MASTER_ADDR", "node7"}, {"MASTER_PORT", "1234"}};
    for (const Row& row :
         {Row{"a local rank and a name", with(plain, {{"LOCAL_RANK", local}}), false},
          Row{"a name alone", plain, false},
          Row{"a local size", with(plain, {{"LOCAL_RANK", local}, {"LOCAL_WORLD_SIZE", "2"}}),
              true},
          Row{"loopback", with(here, {{"LOCAL_RANK", local}}), true},
          Row{"Open MPI without a local size",
              with(meets, {{"OMPI_COMM_WORLD_RANK", rank},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", local}}),
              false},
          Row{"Flux without its hosts",
              with(meets, {{"FLUX_TASK_RANK", rank},
                           {"FLUX_JOB_SIZE", "2"},
                           {"FLUX_TASK_LOCAL_ID", local}}),
              false},
          Row{"an index with a local rank",
              with(meets,
                   {{"JOB_COMPLETION_INDEX", rank}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", local}}),
              false}}) {
      CAPTURE(row.what);
      CAPTURE(rank);
      std::optional<RankEnvironment> e = detect(row.variables);
      REQUIRE(e);
      CHECK(e->rank == (rank == std::string("1") ? 1 : 0));
      CHECK(e->one_host() == row.one_host);
    }
  }
}

TEST_CASE("no ranks: nothing set, a Slurm script or shell, empty values, a world of one") {
  for (const Variables& variables :
       {Variables{}, of("WORLD_SIZE=1"), of("RANK= WORLD_SIZE="), with(kSlurm, "SLURM_STEP_ID=-"),
        with(kSlurm, "SLURM_STEP_ID=4294967291"), with(kSlurm, "SLURM_STEP_ID=4294967290"),
        with(kSlurm, "SLURM_NTASKS=1 SLURM_PROCID=0")})
    CHECK(!detect(variables));
}

TEST_CASE(
    "launchers that say that there is one process: no rank, so that it may start local ranks, and "
    "nothing to be told") {
  for (const Variables& variables :
       {with(kFlux, "FLUX_TASK_RANK=0 FLUX_JOB_SIZE=1 FLUX_TASK_LOCAL_ID=0 FLUX_JOB_NNODES=1"),
        with(kJsrun,
             "JSM_NAMESPACE_RANK=0 JSM_NAMESPACE_SIZE=1 JSM_NAMESPACE_LOCAL_RANK=0 "
             "JSM_NAMESPACE_LOCAL_SIZE=1"),
        of("PALS_RANKID=0 PALS_LOCAL_RANKID=0 PMI_SIZE=1"),
        of("PET_NNODES=1 PET_NODE_RANK=0 PET_NPROC_PER_NODE=8"), Variables{}}) {
    CHECK(!detect(variables));
    CHECK(unrecognised(variables).empty());
  }
}

TEST_CASE(
    "variables that look like a launcher's and do not say enough are named; recognised ones are "
    "not") {
  using List = std::vector<std::string>;
  CHECK(unrecognised(of("JOB_COMPLETION_INDEX=0")) == List{"JOB_COMPLETION_INDEX = 0"});
  CHECK(unrecognised(of("PALS_RANKID=3 PALS_LOCAL_RANKID=1")) == List{"PALS_RANKID = 3"});
  CHECK(unrecognised(of("PMIX_RANK=1 NODE_RANK=1")) == List{"PMIX_RANK = 1", "NODE_RANK = 1"});
  CHECK(unrecognised(of("LWS_WORKER_INDEX=1 LWS_GROUP_SIZE=4")) == List{"LWS_WORKER_INDEX = 1"});
  CHECK(unrecognised(of("LWS_WORKER_INDEX=0 LWS_GROUP_SIZE=1")).empty());
  CHECK(unrecognised(of("JOB_COMPLETION_INDEX=")).empty());
  for (const Variables& known : {kPlain, kTorchrun, kSlurm, kMpi, kFlux, kPals, kPet, kIndexed})
    CHECK(unrecognised(known).empty());
}

TEST_CASE(
    "several nodes whose variables do not say which rank this is: an error, since each node would "
    "train alone") {
  struct Bad {
    Variables variables;
    const char* words;
  };
  for (const Bad& row :
       {Bad{with(kPet, "PET_NPROC_PER_NODE=8"), "PET_NNODES = 2 and PET_NPROC_PER_NODE = 8"},
        Bad{with(kPet, "PET_NPROC_PER_NODE=auto"), "PET_NPROC_PER_NODE = auto"},
        Bad{with(kPet, "PET_NNODES=1:4"), "PET_NNODES = 1:4 is a range"},
        Bad{with(kPet, "PET_NODE_RANK=-"), "PET_NODE_RANK is not set"}}) {
    CAPTURE(row.words);
    try {
      detect(row.variables);
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::unknown_launcher);
      CHECK(exit_status(error.code()) == 4);
      CHECK(error.message().find(row.words) != std::string::npos);
      CHECK(error.helps()[0].find("torchrun") != std::string::npos);
      CHECK(error.helps()[2].find("RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT") !=
            std::string::npos);
    }
  }
  // The help works.
  CHECK(detect(with(kPet, "RANK=1 WORLD_SIZE=2 MASTER_ADDR=head MASTER_PORT=77"))->source ==
        Source::plain);
}

TEST_CASE("the store of torchrun's agent, and one that rank 0 has to serve") {
  CHECK(detect(kTorchrun)->agent_store);
  CHECK(!detect(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE=False"))->agent_store);
  CHECK(detect(with(kTorchrun, "TORCHELASTIC_RUN_ID=-"))->source == Source::torchrun);
}

TEST_CASE("the inherited socket is rank 0's of a local job alone") {
  Variables local = with(kPlain, "MESHWRIGHT_LOCAL_JOB=99 MESHWRIGHT_STORE_FD=3");
  CHECK(detect(local)->listen_fd == -1);
  CHECK(detect(with(local, "RANK=0 LOCAL_RANK=0"))->listen_fd == 3);
  CHECK(detect(with(kPlain, "RANK=0 MESHWRIGHT_STORE_FD=3"))->listen_fd == -1);
}

TEST_CASE("two Slurm steps, and two MPI jobs, meet at different ports") {
  CHECK(detect(kSlurm)->master_port != detect(with(kSlurm, "SLURM_STEP_ID=1"))->master_port);
  CHECK(detect(kSlurm)->master_port != detect(with(kSlurm, "SLURM_JOB_ID=7002"))->master_port);
  CHECK(detect(with(kMpi, "PMIX_NAMESPACE=a.1"))->master_port !=
        detect(with(kMpi, "PMIX_NAMESPACE=a.2"))->master_port);
  // Of those that do not name their jobs the batch system's name counts, and only of those: one
  // rank may have it and another not.
  CHECK(detect(with(kPmi, "SLURM_JOB_ID=7001"))->master_port !=
        detect(with(kPmi, "SLURM_JOB_ID=7002"))->master_port);
  CHECK(detect(with(kMpi, "PMIX_NAMESPACE=a.1 SLURM_JOB_ID=7001"))->master_port ==
        detect(with(kMpi, "PMIX_NAMESPACE=a.1"))->master_port);
}

TEST_CASE("a job's secret, and what its launcher calls it") {
  CHECK(detect(kPlain)->secret.empty());
  CHECK(detect(kPlain)->job.empty());
  const std::string secret(16, 's'), weak(15, 's');
  CHECK(detect(with(kPlain, {{"MESHWRIGHT_JOB_SECRET", secret}}))->secret == secret);
  try {
    detect(with(kPlain, {{"MESHWRIGHT_JOB_SECRET", weak}}));
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::bad_rank_environment);
    CHECK(error.message().starts_with("MESHWRIGHT_JOB_SECRET has 15 characters"));
    CHECK(error.message().find(weak) == std::string::npos);
    CHECK(error.helps()[0].find("openssl rand -hex 32") != std::string::npos);
  }
  CHECK(detect(kSlurm)->job == "7001.0");
  CHECK(detect(with(kSlurm, "SLURM_STEP_ID=3"))->job == "7001.3");
  CHECK(detect(with(kMpi, "PMIX_NAMESPACE=a.1"))->job == "a.1");
  CHECK(detect(kTorchrun)->job.empty());  // "none"
  CHECK(detect(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "night 7"}}))->job == "night 7");
}

TEST_CASE("a range of ports limits what the program chooses, where the ranks meet too") {
  CHECK(!detect(kPlain)->ports.limited());
  const std::optional<RankEnvironment> some =
      detect(with(kPlain, "MESHWRIGHT_PORT_RANGE=29500-29599"));
  CHECK(some->ports.first == 29500);
  CHECK(some->ports.last == 29599);
  CHECK(some->ports.count() == 100);
  CHECK(some->master_port == detect(kPlain)->master_port);  // which somebody has chosen
  for (const Variables& launcher : {kSlurm, kMpi}) {
    CHECK(detect(with(launcher, "MESHWRIGHT_PORT_RANGE=40000-40000"))->master_port == 40000);
    const int port = detect(with(launcher, "MESHWRIGHT_PORT_RANGE=40000-40009"))->master_port;
    CHECK(port >= 40000);
    CHECK(port <= 40004);  // the other half is for what listens at any port
    CHECK(detect(with(launcher, "MESHWRIGHT_PORT_RANGE=40000-40009"))->ports.for_others().count() ==
          5);
    // All of it, where nobody meets by a number.
    CHECK(detect(with(launcher, "MESHWRIGHT_PORT_RANGE=40000-40009 MASTER_PORT=1234"))
              ->ports.for_others()
              .count() == 10);
  }
  CHECK(some->ports.for_others().count() == 100);
  const Variables two = with(kSlurm, "MESHWRIGHT_PORT_RANGE=40000-40002");
  std::set<int> ports;
  for (const char* job : {"7001", "7002", "7003"})
    ports.insert(detect(with(two, {{"SLURM_JOB_ID", job}}))->master_port);
  CHECK(ports == std::set<int>{40000, 40001, 40002});  // too few to divide
  for (const char* bad : {"29500", "29500-", "-29500", "0-10", "29599-29500", "1-65536", "a-b",
                          "29500-29599x", "29500 - 29599", "99999999999-99999999999"}) {
    CAPTURE(bad);
    try {
      detect(with(kPlain, {{"MESHWRIGHT_PORT_RANGE", bad}}));
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_rank_environment);
      CHECK(error.message().starts_with("MESHWRIGHT_PORT_RANGE = \"" + std::string(bad) +
                                        "\" is no range of ports"));
      CHECK(error.helps()[0].find("29500-29599") != std::string::npos);
    }
  }
}

TEST_CASE("variables that make no sense are errors that name the variable") {
  struct Bad {
    Variables variables;
    const char* named;
    const char* words = "";
  };
  const Bad rows[] = {
      {with(kPlain, "RANK=8"), "RANK", "RANK = 8 is not below WORLD_SIZE = 8"},
      {with(kPlain, "RANK=abc"), "RANK", "\"abc\" is not a whole number from 0"},
      {with(kPlain, "RANK=-1"), "RANK", "\"-1\""},
      {with(kPlain, "RANK=1.5"), "RANK"},
      {with(kPlain, {{"RANK", " 1"}}), "RANK"},
      {with(kPlain, "RANK=99999999999999999999"), "RANK"},
      {with(kPlain, "RANK=-"), "RANK", "WORLD_SIZE = 8, but RANK is not set"},
      {with(kPlain, "WORLD_SIZE=-"), "WORLD_SIZE", "not set"},
      {with(kPlain, "WORLD_SIZE=0"), "WORLD_SIZE"},
      {with(kPlain, "WORLD_SIZE=eight"), "WORLD_SIZE"},
      {with(kPlain, "LOCAL_RANK=x"), "LOCAL_RANK"},
      {with(kPlain, "LOCAL_RANK=2 LOCAL_WORLD_SIZE=2"), "LOCAL_RANK",
       "LOCAL_RANK = 2 is not below LOCAL_WORLD_SIZE = 2"},
      {with(kPlain, "LOCAL_RANK=9 MASTER_ADDR=127.0.0.1"), "LOCAL_RANK",
       "LOCAL_RANK = 9 is not below WORLD_SIZE = 8"},
      {with(kPlain, "LOCAL_WORLD_SIZE=9"), "LOCAL_WORLD_SIZE",
       "LOCAL_WORLD_SIZE = 9 is more than WORLD_SIZE = 8"},
      {with(kPlain, "MASTER_ADDR=-"), "MASTER_ADDR", "the job has 8 ranks"},
      {with(kPlain, "MASTER_PORT=-"), "MASTER_PORT", "the job has 8 ranks"},
      {with(kPlain, "MASTER_PORT=0"), "MASTER_PORT"},
      {with(kPlain, "MASTER_PORT=65536"), "MASTER_PORT", "from 1 to 65535"},
      {with(kTorchrun, "RANK=-"), "RANK"},
      {with(kTorchrun, "MASTER_PORT=http"), "MASTER_PORT"},
      {with(kSlurm, "SLURM_PROCID=-"), "SLURM_PROCID"},
      {with(kSlurm, "SLURM_PROCID=8"), "SLURM_PROCID",
       "SLURM_PROCID = 8 is not below SLURM_NTASKS = 8"},
      {with(kSlurm, "SLURM_NTASKS=-"), "SLURM_NTASKS"},
      {with(kSlurm, "SLURM_LOCALID=-"), "SLURM_LOCALID"},
      {with(kSlurm, "SLURM_LOCALID=4"), "SLURM_LOCALID"},
      {with(kSlurm, "SLURM_STEP_ID=first"), "SLURM_STEP_ID"},
      {with(kSlurm, "SLURM_STEP_NODELIST=-"), "SLURM_STEP_NODELIST"},
      {with(kSlurm, "SLURM_STEP_NODELIST=gpu[3-"), "SLURM_STEP_NODELIST"},
      {with(kSlurm, "SLURM_STEP_TASKS_PER_NODE=4"), "SLURM_STEP_TASKS_PER_NODE"},
      {with(kSlurm, "MASTER_PORT=-5"), "MASTER_PORT"},
      {with(kSlurm, "SLURM_DISTRIBUTION=arbitrary"), "MASTER_ADDR",
       "rank 0 may be on any node of SLURM_STEP_NODELIST = gpu[003-004]"},
      {with(kMpi, "OMPI_COMM_WORLD_SIZE=-"), "OMPI_COMM_WORLD_SIZE"},
      {with(kMpi, "OMPI_COMM_WORLD_RANK=4"), "OMPI_COMM_WORLD_RANK"},
      {with(kMpi, "OMPI_COMM_WORLD_LOCAL_SIZE=2"), "MASTER_ADDR", "spans hosts"},
      {with(kPmi, "PMI_SIZE=two"), "PMI_SIZE"},
      {with(kPlain, "MESHWRIGHT_LOCAL_JOB=99 MESHWRIGHT_STORE_FD=one"), "MESHWRIGHT_STORE_FD"},
      {with(kPmi, "PMI_SIZE=-"), "PMI_SIZE", "not set"},
      {with(kFlux, "FLUX_JOB_SIZE=-"), "FLUX_JOB_SIZE", "not set"},
      {with(kFlux, "FLUX_TASK_RANK=8"), "FLUX_TASK_RANK",
       "FLUX_TASK_RANK = 8 is not below FLUX_JOB_SIZE = 8"},
      {with(kFlux, "MASTER_ADDR=-"), "MASTER_ADDR", "the Flux job spans hosts"},
      {with(kFlux, "MASTER_ADDR=- FLUX_JOB_NNODES=-"), "MASTER_ADDR",
       "nothing says that all ranks of the Flux job"},
      {with(kJsrun, "MASTER_ADDR=-"), "MASTER_ADDR", "the jsrun job spans hosts"},
      {with(kMvapich, "MV2_COMM_WORLD_LOCAL_RANK=4"), "MV2_COMM_WORLD_LOCAL_RANK", "is not below"},
      {with(kPals, "PALS_RANKID=x"), "PALS_RANKID"},
      {with(kPet, "PET_NNODES=two"), "PET_NNODES", "\"two\" is not a whole number"},
      {with(kPet, "PET_NODE_RANK=2"), "PET_NODE_RANK",
       "PET_NODE_RANK = 2 is not below PET_NNODES = 2"},
      {with(kPet, "PET_MASTER_ADDR=-"), "PET_MASTER_ADDR", "PET_NNODES = 2"},
      {with(kPet, "PET_MASTER_PORT=0"), "PET_MASTER_PORT"},
      {with(kIndexed, "MASTER_ADDR=-"), "MASTER_ADDR", "JOB_COMPLETION_INDEX = 2"},
      {with(kIndexed, "JOB_COMPLETION_INDEX=4"), "JOB_COMPLETION_INDEX",
       "JOB_COMPLETION_INDEX = 4 is not below WORLD_SIZE = 4"},
  };
  for (const Bad& row : rows) {
    CAPTURE(row.named);
    try {
      detect(row.variables);
      FAIL("no error");
    } catch (const Error& error) {
      CAPTURE(error.message());
      CHECK(error.code() == ErrorCode::bad_rank_environment);
      CHECK(exit_status(error.code()) == 4);
      CHECK(error.message().find(row.named) != std::string::npos);
      CHECK(error.message().find(row.words) != std::string::npos);
      CHECK(error.helps().size() == 2);
    }
  }
}

TEST_CASE("Slurm's lists of hosts") {
  using List = std::vector<std::string>;
  CHECK(expand_hosts("node[003-004]") == List{"node003", "node004"});
  CHECK(expand_hosts("node[9-11,20],login,a[1]b") ==
        List{"node9", "node10", "node11", "node20", "login", "a1b"});
  CHECK(expand_hosts("r[1-2]n[08-09]") == List{"r1n08", "r1n09", "r2n08", "r2n09"});
  CHECK(expand_hosts("one") == List{"one"});
  for (const char* bad : {"", "a,", "a[", "a]", "a[]", "a[1-]", "a[-1]", "a[2-1]", "a[x]", "a[[1]]",
                          "a[1-99999999]", "a[1-1000]b[1-1000]", "a[0000000001]"})
    CHECK_MESSAGE(!expand_hosts(bad), bad);
}

TEST_CASE("Slurm's counts of tasks") {
  CHECK(tasks_of_host("4", 0) == 4);
  CHECK(tasks_of_host("4(x2),3", 1) == 4);
  CHECK(tasks_of_host("4(x2),3", 2) == 3);
  CHECK(!tasks_of_host("4(x2),3", 3));
  for (const char* bad : {"", "x", "4(x", "4(x)", "4(xa)", "-1", "0", "4(x2"})
    CHECK_MESSAGE(!tasks_of_host(bad, 0), bad);
}
