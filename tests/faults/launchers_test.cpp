// What launchers set and ask of a rank: variables that are not understood, torchrun's error file,
// limits that they hand down.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/json/parse.hpp>
#include <thread>

#include "program.h"

using namespace faults;

namespace {

// Sockets that a process has open.
size_t sockets_of(pid_t pid) {
  size_t count = 0;
  std::error_code failed;
  for (std::filesystem::directory_iterator file("/proc/" + std::to_string(pid) + "/fd", failed),
       none;
       !failed && file != none; file.increment(failed)) {
    std::error_code gone;
    count +=
        std::filesystem::read_symlink(file->path(), gone).string().starts_with("socket:") ? 1 : 0;
  }
  return count;
}

int connect_to(int port) {
  int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (fd >= 0 && ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0)
    return fd;
  if (fd >= 0) ::close(fd);
  return -1;
}

}  // namespace

TEST_CASE(
    "a process that looks like one of several, and does not know which, is told and trains alone") {
  Program alone;
  Ended ended = alone.run({"--set", "step_scheduler.max_steps=1"}, {{"JOB_COMPLETION_INDEX", "3"}});
  CAPTURE(ended.err);
  CHECK(ended.code == 0);
  CHECK(
      ended.says("warning: this process is no rank of a larger job and works alone, but "
                 "JOB_COMPLETION_INDEX = 3 looks as if"));
  CHECK(ended.says("set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"));
  Program pods;
  ended = pods.run({}, {{"PET_NNODES", "2"}, {"PET_NODE_RANK", "0"}, {"PET_NPROC_PER_NODE", "8"}});
  check_ended(ended, 4, {"error[E0507]: PET_NNODES = 2 and PET_NPROC_PER_NODE = 8"});
}

TEST_CASE("ranks of one host find each other, whatever each of them knows of the others' places") {
  struct Row {
    const char* what;
    Environment all, last;  // of both ranks, and of rank 1 alone
  };
  for (const Row& row : {Row{"an address that does not say so", {{"MASTER_ADDR", "0.0.0.0"}}, {}},
                         Row{"an interface on one of them", {}, {{"GLOO_SOCKET_IFNAME", "lo"}}}}) {
    CAPTURE(row.what);
    Program zero, one;
    one.share(zero);
    int port = free_port();
    for (int64_t rank : {0, 1}) {
      Environment environment = rank_environment(rank, 2, port);
      std::erase_if(environment, [](const auto& item) {
        return item.first == "LOCAL_WORLD_SIZE" || item.first == "MASTER_ADDR";
      });
      environment.emplace_back("LOCAL_RANK", std::to_string(rank));
      environment.insert(environment.end(), row.all.begin(), row.all.end());
      if (row.all.empty()) environment.emplace_back("MASTER_ADDR", "127.0.0.1");
      if (rank == 1) environment.insert(environment.end(), row.last.begin(), row.last.end());
      (rank == 0 ? zero : one)
          .start({"--set", "step_scheduler.max_steps=1", "--set", "dist_env.timeout_minutes=0.5"},
                 environment);
    }
    for (Program* program : {&zero, &one}) {
      Ended ended = program->wait(120);
      CAPTURE(ended.err);
      CHECK(ended.code == 0);
    }
  }
}

TEST_CASE(
    "under torchrun a mistake in the file reaches torchrun's summary, and that trying again is in "
    "vain is said" *
    doctest::test_suite("whole")) {
  Program program;
  std::filesystem::path file = program.folder() / "error.json";
  // The only rank of its job: of several each would wait for the others, to tell them.
  Environment environment = rank_environment(0, 1, free_port());
  environment.insert(environment.end(), {{"TORCHELASTIC_RUN_ID", "none"},
                                         {"TORCHELASTIC_ERROR_FILE", file.string()},
                                         {"TORCHELASTIC_RESTART_COUNT", "0"},
                                         {"TORCHELASTIC_MAX_RESTARTS", "3"}});
  Ended ended = program.run({"--set", "optimizer.lr=-1"}, environment);
  CAPTURE(ended.err);
  check_ended(ended, 2, {"error[E0204]"});
  CHECK(
      ended.says("torchrun starts the ranks again whatever the exit status, 3 more times, and this "
                 "will come again"));
  CHECK(std::string(boost::json::parse(read_file(file)).at("message").as_string().c_str())
            .starts_with("error[E0204]: optimizer.lr = -1"));
  std::filesystem::remove(file);
}

// A scanner, a monitor, a job with the wrong port: more connections than the usual soft limit of
// open files.
TEST_CASE(
    "more connections of a stranger than the soft limit of open files do no harm: of those that "
    "prove nothing rank 0 keeps a few") {
  constexpr size_t kStrangers = 1500;
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  if (limit.rlim_max < 2 * kStrangers) {
    MESSAGE("NOT TESTED: the hard limit of open files is " << limit.rlim_max << ", below "
                                                           << 2 * kStrangers);
    return;
  }
  limit.rlim_cur = limit.rlim_max;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
  int port = free_port();
  Program zero, one;
  one.share(zero);
  zero.launcher({"/bin/bash", "-c", "ulimit -Sn 1024; exec \"$0\" \"$@\""});
  zero.start({"--set", "step_scheduler.max_steps=4", "--set", "dist_env.timeout_minutes=1"},
             rank_environment(0, 2, port));
  std::vector<int> strangers;
  for (auto end = std::chrono::steady_clock::now() + std::chrono::seconds(50);
       strangers.size() < kStrangers && std::chrono::steady_clock::now() < end;) {
    int fd = connect_to(port);
    if (fd < 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // nobody listens yet
    else
      strangers.push_back(fd);
  }
  CHECK(strangers.size() == kStrangers);
  auto sockets_become = [&](auto&& good) {
    for (int i = 0; i < 600 && !good(sockets_of(zero.pid())); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return good(sockets_of(zero.pid()));
  };
  CHECK(sockets_become([](size_t open) { return open > 0 && open < 200; }));
  one.start({"--set", "step_scheduler.max_steps=4", "--set", "dist_env.timeout_minutes=1"},
            rank_environment(1, 2, port));
  Ended second = one.wait(120), first = zero.wait(120);
  for (const Ended& ended : {first, second}) {
    CAPTURE(ended.err);
    CHECK(ended.code == 0);
  }
  for (const int fd : strangers) ::close(fd);
}
