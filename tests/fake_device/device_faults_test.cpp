// Faults of the device path that need more than a job of the program. A case that is skipped is
// what one rank does: other cases start the ranks, each a process of this test on the fake device.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/trainer.h"

namespace device_faults_test {

namespace fs = std::filesystem;
using namespace meshwright;
using Variables = std::map<std::string, std::string>;

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

int free_port() {
  const int door = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ::bind(door, reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(door, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(door);
  return ntohs(address.sin_port);
}

struct Rank {
  int code = -1;          // -1: it was killed at the end
  std::string said, log;  // log: the device's
};

// Runs a skipped case on so many ranks. `own(rank)`: variables of one of them.
std::vector<Rank> play(const std::string& role, int ranks,
                       const std::function<Variables(int)>& own = {}) {
  std::string name = (fs::temp_directory_path() / "meshwright_device_faults.XXXXXX").string();
  const fs::path folder = ::mkdtemp(name.data());
  const std::string port = std::to_string(free_port()), self = fs::canonical("/proc/self/exe"),
                    filter = "--test-case=" + role;
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
      ::dup2(to, 1);
      ::dup2(to, 2);
      ::execl(MESHWRIGHT_SOURCE_DIR "/tests/fake_device/run", "run", self.c_str(), "--no-skip",
              "--no-version", filter.c_str(), nullptr);
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
    out[rank].said = read_file(folder / ("out" + number));
    out[rank].log = read_file(folder / ("log" + number + "." + std::to_string(children[rank])));
  }
  fs::remove_all(folder);
  return out;
}

// Each rank's own checks held, and nothing was wrong on its device.
void check_played(const std::vector<Rank>& ranks) {
  for (const Rank& rank : ranks) {
    CHECK_MESSAGE(rank.code == 0, rank.said);
    for (const char* wrong : {"RACE", "HOST ACCESS", "STRAY", "outside every", "nccl WRONG",
                              "tensor lies at", "fault at"})
      CHECK_MESSAGE(rank.log.find(wrong) == std::string::npos, rank.log);
  }
}

Job job_of(const std::vector<std::string>& sets, const std::string& minutes = "1") {
  return Job::from_text(
      "schema = 1\n[dist_env]\ndevice = \"cuda\"\ntimeout_minutes = " + minutes + "\n", sets);
}

}  // namespace device_faults_test

using namespace device_faults_test;

TEST_CASE("rank: a group that rank 1 comes to too late" * doctest::skip()) {
  std::shared_ptr<World> world = join_world(job_of({}, "0.05"));
  if (world->rank() == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(8));
    ::_exit(0);
  }
  std::string said;
  const auto began = std::chrono::steady_clock::now();
  try {
    world->everyone()->barrier();
  } catch (const Error& error) {
    said = error.what();
  }
  CAPTURE(said);
  CHECK(said.find("rank 0 could not join group world [0, 1]") != std::string::npos);
  CHECK(said.find("no word from rank 1") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(7));
}

TEST_CASE("a rank that never comes to a group is named within the timeout") {
  check_played(play("rank: a group that rank 1 comes to too late", 2));
}
