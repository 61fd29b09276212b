#include "program.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

extern char** environ;

namespace faults {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

namespace {

const std::string kData = MESHWRIGHT_SOURCE_DIR "/tests/data/parity/";

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::vector<pid_t> marked(const std::string& marker) {
  std::vector<pid_t> out;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc", failed)) {
    pid_t pid = static_cast<pid_t>(std::atol(entry.path().filename().c_str()));
    if (pid <= 0 || pid == ::getpid()) continue;
    std::string variables = read_file(entry.path() / "environ");  // of a zombie: empty
    if (variables.find(marker) != std::string::npos) out.push_back(pid);
  }
  return out;
}

}  // namespace

void check_ended(const Ended& ended, int code, const Words& says, const Words& never) {
  INFO(ended.err);
  CHECK(ended.code == code);
  for (const std::string& part : says) CHECK_MESSAGE(ended.says(part), part);
  for (const std::string& part : never) CHECK_MESSAGE(!ended.says(part), part);
}

Words job_words(int64_t ranks, const Words& sets, const Words& more_sets) {
  Words out;
  if (ranks > 0) out = {"--nproc", std::to_string(ranks)};
  for (const Words* some : {&sets, &more_sets})
    for (const std::string& set : *some) out.insert(out.end(), {"--set", set});
  return out;
}

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

Program::Program() {
  std::string name = (fs::temp_directory_path() / "meshwright_fault.XXXXXX").string();
  folder_ = ::mkdtemp(name.data());
  job_ = folder_ / "job.toml";
  marker_ = "MESHWRIGHT_FAULT_CASE=" + folder_.string();
  std::ofstream(job_)
      << "schema = 1\n[run]\nthreads = 1\nname = \"fault\"\ndir = \"" << (folder_ / "runs").string()
      << "\"\n[model]\npretrained = \"" << kData << "llama\"\n"
      << "[distributed.mp_policy]\nparam_dtype = \"float32\"\noutput_dtype = \"float32\"\n"
         "[step_scheduler]\nglobal_batch_size = 6\nlocal_batch_size = 1\nmax_steps = 1000000\n"
         "[optimizer]\nlr = 1e-3\n[lr_scheduler]\nlr_decay_style = \"constant\"\nlr_warmup_steps = "
         "0\n"
         "[dist_env]\ntimeout_minutes = 0.05\n"
         "[dataset]\nkind = \"tokens\"\ndtype = \"uint16\"\npath = \""
      << kData << "train.bin\"\nseq_len = 40\nshuffle = false\n";
}

Program::~Program() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (pid_t pid : marked(marker_)) ::kill(pid, SIGKILL);
  fs::remove_all(folder_);
}

fs::path Program::copy_model() const {
  fs::path to = folder_ / "model";
  fs::remove_all(to);
  fs::copy(kData + "llama", to);
  return to;
}

fs::path Program::copy_tokens() const {
  fs::copy_file(kData + "train.bin", folder_ / "train.bin", fs::copy_options::overwrite_existing);
  return folder_ / "train.bin";
}

void Program::start(const Words& arguments, const Environment& environment,
                    const std::string& out) {
  Words words = launcher_, variables = {marker_};
  words.insert(words.end(), {MESHWRIGHT_BUILD_DIR "/bin/meshwright", verb_, job_.string()});
  words.insert(words.end(), arguments.begin(), arguments.end());
  for (char** e = environ; *e != nullptr; ++e) {
    std::string entry = *e, name = entry.substr(0, entry.find('='));
    bool launcher = name == "RANK" || name == "WORLD_SIZE" || name == "MASTER_ADDR" ||
                    name == "MASTER_PORT" || name == "MESHWRIGHT_JOB_SECRET" ||
                    name == "MESHWRIGHT_PORT_RANGE" || name.starts_with("LOCAL_") ||
                    name.starts_with("SLURM_") || name.starts_with("OMPI_") ||
                    name.starts_with("PMI") || name.starts_with("TORCH");
    if (!launcher) variables.push_back(entry);
  }
  variables.emplace_back("NO_COLOR=1");
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  std::vector<char*> argv, envp;
  for (std::string& word : words) argv.push_back(word.data());
  for (std::string& variable : variables) envp.push_back(variable.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  out_ = out.empty() ? (folder_ / "out").string() : out;
  mark();
  pid_ = ::fork();
  if (pid_ == 0) {
    int streams[] = {::open("/dev/null", O_RDONLY),
                     ::open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600),
                     ::open((folder_ / "err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600)};
    for (int i = 0; i < 3; ++i)
      if (streams[i] < 0 || ::dup2(streams[i], i) < 0) ::_exit(126);
    if (!directory_.empty() && ::chdir(directory_.c_str()) != 0) ::_exit(126);
    ::execvpe(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
}

pid_t Program::rank(int64_t number) const {
  // Until it runs its own program a child still is a copy of the launcher, which waits for that.
  std::string path =
      "/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_) + "/children";
  std::string rank = '\0' + std::string("RANK=") + std::to_string(number) + '\0';
  for (int i = 0; i < 3000; ++i) {
    std::istringstream in(read_file(path));
    for (pid_t child; in >> child;)
      if (read_file("/proc/" + std::to_string(child) + "/environ").find(rank) != std::string::npos)
        return child;
    std::this_thread::sleep_for(milliseconds(10));
  }
  FAIL("rank ", number, " was not started");
  return -1;
}

void Program::wait_for_steps(int64_t count) const {
  for (int i = 0; i < 6000; ++i) {
    std::string rows = read_file(run_folder() / "metrics.jsonl");
    if (std::count(rows.begin(), rows.end(), '\n') >= count) return;
    std::this_thread::sleep_for(milliseconds(10));
  }
  FAIL("no ", count, " steps in a minute:\n", read_file(folder_ / "err"));
}

void Program::mark() { begin_ = Clock::now(); }

Ended Program::wait(double limit) {
  Ended ended = reap(limit);
  if (job_.parent_path() == folder_) check_files();  // else another program may be writing there
  return ended;
}

Ended Program::reap(double limit) {
  int status = 0;
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    if (seconds_since(begin_) > limit)
      FAIL("still there after ", limit, " s:\n", read_file(out_), read_file(folder_ / "err"));
    std::this_thread::sleep_for(milliseconds(5));
  }
  pid_ = -1;
  Ended ended;
  ended.seconds = seconds_since(begin_);
  ended.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  if (fs::is_regular_file(out_)) ended.out = read_file(out_);
  ended.err = read_file(folder_ / "err");
  check_processes();
  return ended;
}

void Program::check_processes() const {
  // Killed processes take a moment to go.
  std::vector<pid_t> left = marked(marker_);
  for (int i = 0; i < 300 && !left.empty(); ++i) {
    std::this_thread::sleep_for(milliseconds(10));
    left = marked(marker_);
  }
  CHECK_MESSAGE(left.empty(), left.size(), " processes are left");
}

void Program::check_files() const {
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(run_folder(), failed))
    CHECK_MESSAGE(!entry.path().filename().string().ends_with(".tmp"), entry.path().string());
  if (!fs::is_regular_file(run_folder() / "metrics.jsonl")) return;
  std::string rows = read_file(run_folder() / "metrics.jsonl");
  CHECK((rows.empty() || rows.back() == '\n'));
  std::istringstream lines(rows);
  for (std::string line; std::getline(lines, line);) {
    boost::system::error_code bad;
    boost::json::parse(line, bad);
    CHECK_MESSAGE(!bad, line);
  }
}

Words training_rows(const Program& program) {
  std::ifstream in(program.run_folder() / "metrics.jsonl");
  Words out;
  for (std::string line; std::getline(in, line);) {
    out.push_back(line.substr(0, line.find(", \"step_ms\"")));
    // The last ones of a row.
    if (const size_t mix = line.find(", \"source_samples\""); mix != std::string::npos)
      out.back() += line.substr(mix);
  }
  return out;
}

Environment rank_environment(int64_t rank, int64_t world, int port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(world)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(port)}};
}

}  // namespace faults
