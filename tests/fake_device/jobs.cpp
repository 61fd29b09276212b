#include "jobs.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string_view>
#include <thread>

#include "../faults/program.h"
#include "tests/contents.h"
#include "wrong_lines.h"

namespace fake_device_jobs {

namespace {

const std::string kProgram = MESHWRIGHT_BUILD_DIR "/bin/meshwright";
const std::string kLibraries = std::string("FAKE_DEVICE_LIBRARIES=") + FAKE_DEVICE_LIBRARIES;

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

bool has(const Row& row, const std::string& part) {
  return std::any_of(row.sets.begin(), row.sets.end(),
                     [&](const std::string& set) { return set.find(part) != std::string::npos; });
}

// LibTorch's allocator gives whole blocks of 512 bytes, and each step asks for what the one before
// asked for. Two blocks are fewer than three steps leave that leave the smallest one each.
constexpr int64_t kTwoBlocks = int64_t{2} * 512;

// By how much the peak may differ between steps that leave nothing behind.
int64_t most_grown(const Row& row, int64_t peak) {
  // Messages are as long as the routers of that step make them: the fewer tokens a rank has, the
  // more that is of all it holds. Nothing of it may be left (check_steps).
  if (has(row, "distributed.ep_size=") && !has(row, "distributed.moe.dispatcher=all_gather"))
    return peak / 10;
  // For more than 1 MiB a free block will do that is up to 1 MiB larger. The other models have no
  // tensor of that size.
  if (has(row, "llama-quickstart")) return int64_t{1} << 20;
  return kTwoBlocks;
}

Ended run_words(const fs::path& folder, Strings all, On on, const Strings& variables) {
  Strings environment{"OMP_NUM_THREADS=1", "NO_COLOR=1", kLibraries,
                      "FAKE_DEVICE_LOG=" + (folder / "log").string(),
                      "FAKE_DEVICE_COUNTERS=" + (folder / "counters").string()};
  environment.insert(environment.end(), variables.begin(), variables.end());
  if (on == On::device) all.insert(all.begin(), MESHWRIGHT_SOURCE_DIR "/tests/fake_device/run");
  Ended out;
  const auto begin = std::chrono::steady_clock::now();
  out.code = run(all, environment, folder / "out");
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  out.said = contents(folder / "out");
  std::istringstream rows(contents(folder / "run" / "metrics.jsonl"));
  for (std::string line; std::getline(rows, line);) {
    const boost::json::object values = boost::json::parse(line).as_object();
    if (!values.contains("loss")) continue;
    // What is not a number is null there.
    auto number = [&](const char* key) {
      return values.at(key).is_number() ? values.at(key).to_number<double>() : NAN;
    };
    out.losses.push_back(number("loss"));
    out.norms.push_back(number("grad_norm"));
    out.rows.push_back(values);
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("log.")) out.logs.push_back(contents(entry.path()));
    if (name.starts_with("counters."))
      out.counters.push_back(boost::json::parse(contents(entry.path())).as_object());
  }
  std::sort(out.counters.begin(), out.counters.end(), [](const auto& a, const auto& b) {
    return a.at("rank").as_int64() < b.at("rank").as_int64();
  });
  return out;
}

}  // namespace

Ended run_program(const fs::path& folder, const Strings& words, On on, const Strings& variables) {
  Strings all{kProgram};
  all.insert(all.end(), words.begin(), words.end());
  return run_words(folder, all, on, variables);
}

Ended run_ranks(const fs::path& folder, const Strings& words, int ranks, On on,
                const Strings& variables) {
  Strings all{"/bin/bash", "-c",
              R"(ranks=$1; shift; for ((rank = 0; rank < ranks; ++rank)); do
                 RANK=$rank LOCAL_RANK=$rank "$@" & pids="$pids $!"; done
                 for pid in $pids; do wait $pid || exit; done)",
              "ranks", std::to_string(ranks)};
  all.insert(all.end(), words.begin(), words.end());
  Strings own = variables;
  for (const char* size : {"WORLD_SIZE=", "LOCAL_WORLD_SIZE="})
    own.push_back(size + std::to_string(ranks));
  own.push_back("MASTER_ADDR=127.0.0.1");
  own.push_back("MASTER_PORT=" + std::to_string(free_port()));
  return run_words(folder, all, on, own);
}

namespace {

void remove_counters(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().starts_with("counters.")) found.push_back(entry.path());
  for (const fs::path& path : found) fs::remove(path);
}

}  // namespace

Ended train(const Row& row, On on, const Strings& variables) {
  const Folder folder;
  auto run_to = [&](size_t steps, const Strings& more = {}) {
    Strings words{"train", "configs/" + row.config + ".toml", "--nproc", std::to_string(row.ranks)};
    Strings sets{on == On::device ? "dist_env.device=cuda" : "dist_env.device=cpu",
                 "step_scheduler.max_steps=" + std::to_string(steps), "run.name=run",
                 "run.dir=" + folder.path.string()};
    sets.insert(sets.end(), row.sets.begin(), row.sets.end());
    sets.insert(sets.end(), more.begin(), more.end());
    for (const std::string& set : sets) words.insert(words.end(), {"--set", set});
    return run_program(folder.path, words, on, variables);
  };
  if (row.resume_after > 0) {
    if (Ended first = run_to(row.resume_after, row.first_sets); first.code != 0) return first;
    remove_counters(folder.path);  // those of the run that goes on are the job's
  }
  return run_to(row.steps);
}

const Ended& trained(const Row& row, On on, const Strings& variables) {
  static std::map<Strings, Ended> kept;  // by all that makes a difference
  Strings key{row.config, std::to_string(row.ranks), std::to_string(row.steps),
              std::to_string(row.resume_after), on == On::device ? "device" : "host"};
  for (const Strings* some : {&row.sets, &row.first_sets, &variables}) {
    key.insert(key.end(), some->begin(), some->end());
    key.emplace_back();
  }
  auto found = kept.find(key);
  if (found == kept.end()) found = kept.emplace(key, train(row, on, variables)).first;
  return found->second;
}

Strings wrong_lines(const std::string& log) {
  Strings out;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);)
    if (std::any_of(kWrongLines.begin(), kWrongLines.end(),
                    [&](std::string_view part) { return line.find(part) != std::string::npos; }))
      out.push_back(line);
  return out;
}

long races(const Ended& ended) {
  long out = 0;
  for (const std::string& log : ended.logs)
    for (const std::string& line : wrong_lines(log))
      if (line.find("RACE") != std::string::npos) ++out;
  return out;
}

void check_logs(const Ended& ended) {
  CHECK_FALSE(ended.logs.empty());
  for (const std::string& log : ended.logs)
    for (const std::string& line : wrong_lines(log)) CHECK_MESSAGE(false, line);
}

long counted(const std::string& log, const std::string& word) {
  const size_t line = log.rfind("fake device: process ");
  const size_t at = line == std::string::npos ? line : log.find(" " + word, line);
  if (at == std::string::npos) return -1;
  const size_t begin = log.rfind(' ', at - 1);
  return std::atol(log.c_str() + begin + 1);
}

void check_close(const char* what, const std::vector<double>& got, const std::vector<double>& want,
                 const Row& row) {
  CAPTURE(what);
  REQUIRE(got.size() == row.steps);
  REQUIRE(want.size() == row.steps);
  for (size_t i = 0; i < row.steps; ++i) {
    CAPTURE(i);
    CAPTURE(got[i]);
    CAPTURE(want[i]);
    CHECK(std::abs(got[i] - want[i]) <= std::max(row.tolerance, kFloat) * std::abs(want[i]));
  }
}

size_t compared_steps(const Row& row) {
  return row.tolerance > kFloat ? std::min<size_t>(row.steps, 3) : row.steps;
}

void check_like(const Ended& device, const Ended& host, const Row& row) {
  Row compared = row;
  compared.steps = compared_steps(row);
  auto compare = [&](const char* what, std::vector<double> got, std::vector<double> want) {
    for (std::vector<double>* values : {&got, &want}) {
      CHECK(values->size() == row.steps);
      if (values->size() > compared.steps) values->resize(compared.steps);
    }
    check_close(what, got, want, compared);
  };
  compare("loss", device.losses, host.losses);
  compare("norm", device.norms, host.norms);
}

StepCosts step_costs(const Ended& ended, int ranks, size_t steps) {
  StepCosts out;
  CHECK(steps >= kWatchedSteps);
  CHECK(static_cast<int>(ended.counters.size()) == ranks);  // each of them used a device
  for (const boost::json::object& rank : ended.counters) {
    const boost::json::array& all = rank.at("steps").as_array();
    CHECK(all.size() == steps);
    auto of = [&](size_t step, const char* key) {
      return all.at(step).as_object().at(key).to_number<int64_t>();
    };
    for (size_t step = 1; step + 1 < all.size(); ++step) {
      out.waits = std::max(out.waits, of(step, "host_waits"));
      out.left = std::max(out.left, of(step, "least_bytes") - of(1, "least_bytes"));
      out.grown = std::max(out.grown, of(step, "peak_bytes") - of(1, "peak_bytes"));
      out.peak = std::max(out.peak, of(1, "peak_bytes"));
    }
  }
  return out;
}

StepCosts check_steps(const Ended& ended, const Row& row) {
  const StepCosts out = step_costs(ended, row.ranks, row.steps - row.resume_after);
  CHECK(out.waits <= most_waits(row.name, row.ranks));
  CHECK(out.left <= kTwoBlocks);
  CHECK(out.grown <= most_grown(row, out.peak));
  return out;
}

}  // namespace fake_device_jobs
