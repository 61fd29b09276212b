// Jobs of the real program on the fake device and on the CPU: the same losses and gradient norms,
// and nothing wrong in the device's log. README.md says what the device checks.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace fake_device_test {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

const std::string kFirst = "first_fsdp2_cpu", kMegatron = "megatron_fsdp_cpu",
                  kExperts = "experts_cpu";
constexpr double kFloat = 1e-6, kHalf = 5e-5;
constexpr size_t kSteps = 3;

struct Row {
  std::string name, config;
  int ranks = 2;
  Strings sets;
  double tolerance = kFloat;
};
const std::vector<Row> kRows{
    {"fsdp2", kFirst, 2, {}},
    {"bfloat16",
     kFirst,
     2,
     {"distributed.mp_policy.param_dtype=bfloat16", "distributed.mp_policy.output_dtype=bfloat16"},
     kHalf},
    {"gathered once", kFirst, 2, {"distributed.fsdp2.reshard_after_forward=false"}},
    {"offload", kFirst, 2, {"distributed.fsdp2.offload_policy=cpu"}},
    {"recomputation", kFirst, 2, {"distributed.activation_checkpointing=full"}},
    {"hybrid", kFirst, 4, {"distributed.dp_replicate_size=2"}},
    {"tensor parallel", kFirst, 2, {"distributed.tp_size=2"}},
    {"sequence parallel",
     kFirst,
     2,
     {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
    {"ddp", kFirst, 2, {"distributed.strategy=ddp"}},
    {"megatron_fsdp 1",
     kMegatron,
     2,
     {"distributed.megatron_fsdp.zero_dp_strategy=1",
      "distributed.megatron_fsdp.init_fsdp_with_meta_device=false"}},
    {"megatron_fsdp 3", kMegatron, 2, {}},
    {"asynchronous tensor parallel",
     kFirst,
     2,
     {"distributed.tp_size=2", "distributed.sequence_parallel=true",
      "distributed.enable_async_tensor_parallel=true"}},
    {"tensor parallel, shards, recomputation, offload",
     kFirst,
     4,
     {"distributed.tp_size=2", "distributed.activation_checkpointing=full",
      "distributed.fsdp2.offload_policy=cpu"}},
    {"experts", kExperts, 2, {}},
    {"experts, all to all", kExperts, 2, {"distributed.strategy=moe_ep", "distributed.ep_size=2"}},
    {"experts, all gather",
     kExperts,
     2,
     {"distributed.strategy=moe_ep", "distributed.ep_size=2",
      "distributed.moe.dispatcher=all_gather"}},
    {"1F1B",
     kFirst,
     2,
     {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1F1B",
      "distributed.pipeline.pp_microbatch_size=2"}},
    {"ZBV",
     kFirst,
     2,
     {"model.config=configs/models/llama-quickstart.json", "distributed.pp_size=2",
      "distributed.pipeline.pp_schedule=ZBVZeroBubble",
      "distributed.pipeline.pp_microbatch_size=2"}},
    {"ring", kFirst, 2, {"distributed.cp_size=2", "distributed.context.ring_size=2"}},
    {"ulysses", kFirst, 2, {"distributed.cp_size=2", "distributed.context.ulysses_size=2"}},
};

const std::string kProgram = MESHWRIGHT_BUILD_DIR "/bin/meshwright";
const std::string kLibraries = std::string("FAKE_DEVICE_LIBRARIES=") + FAKE_DEVICE_LIBRARIES;

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// A folder for the runs of a case.
struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "meshwright_fake_device.XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
};

// What became of a job.
struct Ended {
  int code = -1;
  std::string said;
  std::vector<double> losses, norms;
  std::vector<std::string> logs;  // the device's, one a process
};

// Runs to the end; a job that hangs is killed with all its ranks.
int run(Strings words, const Strings& environment, const fs::path& out) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::setpgid(0, 0);
    for (const std::string& variable : environment) {
      const size_t equals = variable.find('=');
      ::setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
    }
    const int to = ::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (to < 0 || ::dup2(to, 1) < 0 || ::dup2(to, 2) < 0) ::_exit(126);
    if (::chdir(MESHWRIGHT_SOURCE_DIR) != 0) ::_exit(126);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(3);
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > limit) ::kill(-pid, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(-pid, SIGKILL);  // ranks that are left
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

Ended train(const Row& row, bool on_device, const Strings& variables = {}) {
  Folder folder;
  const std::string log = (folder.path / "log").string();
  Strings environment{"OMP_NUM_THREADS=1", "NO_COLOR=1", kLibraries, "FAKE_DEVICE_LOG=" + log};
  environment.insert(environment.end(), variables.begin(), variables.end());
  Strings words;
  if (on_device) words.emplace_back(MESHWRIGHT_SOURCE_DIR "/tests/fake_device/run");
  words.insert(words.end(), {kProgram, "train", "configs/" + row.config + ".toml", "--nproc",
                             std::to_string(row.ranks)});
  Strings sets{on_device ? "dist_env.device=cuda" : "dist_env.device=cpu",
               "step_scheduler.max_steps=" + std::to_string(kSteps), "run.name=run",
               "run.dir=" + folder.path.string()};
  sets.insert(sets.end(), row.sets.begin(), row.sets.end());
  for (const std::string& set : sets) words.insert(words.end(), {"--set", set});

  Ended out;
  out.code = run(words, environment, folder.path / "out");
  out.said = read_file(folder.path / "out");
  std::istringstream rows(read_file(folder.path / "run" / "metrics.jsonl"));
  for (std::string line; std::getline(rows, line);) {
    const boost::json::object values = boost::json::parse(line).as_object();
    if (!values.contains("loss")) continue;
    out.losses.push_back(values.at("loss").to_number<double>());
    out.norms.push_back(values.at("grad_norm").to_number<double>());
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.path))
    if (entry.path().filename().string().starts_with("log."))
      out.logs.push_back(read_file(entry.path()));
  return out;
}

// Lines of the log that tell of a fault, of the program's or of the fake.
const Strings kWrong{"RACE",         "HOST ACCESS",
                     "STRAY KERNEL", "outside every allocation",
                     "is not there", "nccl WRONG",
                     "fault at",     "tensor lies at",
                     "asked for",    "communicators are left"};
Strings wrong_lines(const std::string& log) {
  Strings out;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);)
    for (const std::string& part : kWrong)
      if (line.find(part) != std::string::npos) {
        out.push_back(line);
        break;
      }
  return out;
}

// The number before a word of the summary, or -1.
long counted(const std::string& log, const std::string& word) {
  const size_t line = log.rfind("fake device: process ");
  const size_t at = line == std::string::npos ? line : log.find(" " + word, line);
  if (at == std::string::npos) return -1;
  const size_t begin = log.rfind(' ', at - 1);
  return std::atol(log.c_str() + begin + 1);
}

void check_close(const char* what, const std::vector<double>& got, const std::vector<double>& want,
                 double tolerance) {
  CAPTURE(what);
  REQUIRE(got.size() == kSteps);
  REQUIRE(want.size() == kSteps);
  for (size_t i = 0; i < kSteps; ++i) {
    CAPTURE(i);
    CAPTURE(got[i]);
    CAPTURE(want[i]);
    CHECK(std::abs(got[i] - want[i]) <= tolerance * std::abs(want[i]));
  }
}

long races(const Ended& ended) {
  long out = 0;
  for (const std::string& log : ended.logs)
    for (const std::string& line : wrong_lines(log))
      if (line.find("RACE") != std::string::npos) ++out;
  return out;
}

}  // namespace fake_device_test

using namespace fake_device_test;

TEST_CASE("what runs on the fake device gives what the CPU gives, and in order") {
  for (const Row& row : kRows) {
    DOCTEST_SUBCASE(row.name.c_str()) {
      CAPTURE(row.name);
      const Ended device = train(row, true), host = train(row, false);
      REQUIRE_MESSAGE(device.code == 0, device.said);
      REQUIRE_MESSAGE(host.code == 0, host.said);
      check_close("loss", device.losses, host.losses, row.tolerance);
      check_close("norm", device.norms, host.norms, std::max(row.tolerance, kFloat));
      long processes = 0;
      for (const std::string& log : device.logs) {
        for (const std::string& line : wrong_lines(log)) CHECK_MESSAGE(false, line);
        const long operations = counted(log, "operations");
        if (operations <= 0) continue;
        ++processes;
        CHECK(counted(log, "stray kernels") == 0);
        CHECK(counted(log, "races") == 0);
      }
      CHECK(processes == row.ranks);  // each of them used a device
    }
  }
}

// The checks see something: what LibTorch orders is no longer ordered.
TEST_CASE("streams that do not wait for events are races") {
  const Ended ended = train(kRows[0], true, {"FAKE_DEVICE_IGNORE_WAITS=1"});
  CHECK_MESSAGE(races(ended) >= 1, ended.said);
}
TEST_CASE("a host that does not wait for its copies is a race") {
  Row row = kRows[3];
  REQUIRE(row.name == "offload");
  const Ended ended = train(row, true, {"FAKE_DEVICE_IGNORE_SYNCS=1"});
  CHECK_MESSAGE(races(ended) >= 1, ended.said);
}
