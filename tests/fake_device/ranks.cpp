#include "ranks.h"

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "tests/contents.h"
#include "tests/fixtures/free_port.h"
#include "wrong_lines.h"

namespace device_faults_test {

std::string told(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<Rank> run_on_ranks(std::vector<std::string> command, int ranks,
                               const std::function<Variables(int)>& own) {
  const Folder made;
  const fs::path& folder = made.path;
  const std::string port = std::to_string(free_port());
  command.insert(command.begin(), MESHWRIGHT_SOURCE_DIR "/tests/fake_device/run");
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string number = std::to_string(rank), all = std::to_string(ranks);
    Variables variables{{"RANK", number},
                        {"WORLD_SIZE", all},
                        {"LOCAL_RANK", number},
                        {"LOCAL_WORLD_SIZE", all},
                        {"MASTER_ADDR", "127.0.0.1"},
                        {"MASTER_PORT", port},
                        {"OMP_NUM_THREADS", "1"},
                        {"FAKE_DEVICE_LIBRARIES", FAKE_DEVICE_LIBRARIES},
                        {"FAKE_DEVICE_LOG", folder / ("log" + number)}};
    for (const auto& [key, value] : own ? own(rank) : Variables()) variables[key] = value;
    const pid_t child = ::fork();
    if (child == 0) {
      for (const auto& [key, value] : variables) ::setenv(key.c_str(), value.c_str(), 1);
      const int to = ::open((folder / ("out" + number)).c_str(), O_WRONLY | O_CREAT, 0600);
      if (to < 0 || ::dup2(to, 1) < 0 || ::dup2(to, 2) < 0) ::_exit(126);
      std::vector<char*> words;
      for (std::string& word : command) words.push_back(word.data());
      words.push_back(nullptr);
      ::execv(words[0], words.data());
      ::_exit(127);
    }
    children.push_back(child);
  }
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::vector<Rank> out(children.size());
  // Who waits for rank 1 for ever is killed with it once rank 0 has ended.
  for (size_t rank = 0; rank < out.size(); ++rank) {
    int status = 0;
    while (::waitpid(children[rank], &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > limit) ::kill(children[rank], SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (WIFEXITED(status)) out[rank].code = WEXITSTATUS(status);
    const std::string number = std::to_string(rank);
    out[rank].said = contents(folder / ("out" + number));
    out[rank].log = contents(folder / ("log" + number + "." + std::to_string(children[rank])));
  }
  return out;
}

std::vector<Rank> play(const std::string& role, int ranks,
                       const std::function<Variables(int)>& own) {
  return run_on_ranks(
      {fs::canonical("/proc/self/exe"), "--no-skip", "--no-version", "--test-case=" + role}, ranks,
      own);
}

std::vector<Rank> play(const std::string& role, int ranks, const Variables& all) {
  return play(role, ranks, [&](int) { return all; });
}

void check_played(const std::vector<Rank>& ranks) {
  for (const Rank& rank : ranks) {
    CHECK_MESSAGE(rank.code == 0, rank.said);
    for (const std::string_view wrong : fake_device_jobs::kWrongLines)
      CHECK_MESSAGE(rank.log.find(wrong) == std::string::npos, rank.log);
  }
}

void* find_in_the_fake(const char* name) {
  void* found = ::dlsym(RTLD_DEFAULT, name);
  REQUIRE_MESSAGE(found != nullptr, name);
  return found;
}

}  // namespace device_faults_test
