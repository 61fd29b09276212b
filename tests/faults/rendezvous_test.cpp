// Ranks that cannot meet, or should not: each its own words, and soon.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <thread>

#include "program.h"

using namespace faults;

namespace {

// Another program on the port: silent, or hanging up at once.
class Stranger {
 public:
  explicit Stranger(bool hangs_up, uint32_t interface = INADDR_LOOPBACK) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(interface);
    socklen_t size = sizeof address;
    REQUIRE(fd_ >= 0);
    REQUIRE(::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(fd_, 64) == 0);
    REQUIRE(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port = ntohs(address.sin_port);
    if (hangs_up)
      thread_ = std::thread([fd = fd_] {
        for (int client; (client = ::accept4(fd, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;)
          ::close(client);
      });
  }
  ~Stranger() {
    ::shutdown(fd_, SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    ::close(fd_);
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  int port = 0;

 private:
  int fd_;
  std::thread thread_;
};

struct Both {
  Ended zero, one;
};

// By which ranks prove to be of one job: then a mistake of one ends all.
const Environment kSecret = {{"MESHWRIGHT_JOB_SECRET", "a secret of this job"}};

Environment with_secret(Environment environment) {
  environment.insert(environment.end(), kSecret.begin(), kSecret.end());
  return environment;
}

// Two processes as a launcher would start them, with their own arguments and variables.
Both run_two(const std::vector<std::string>& zero, const std::vector<std::string>& one,
             const Environment& zero_more = {}, const Environment& one_more = {}) {
  int port = free_port();
  Environment environments[] = {with_secret(rank_environment(0, 2, port)),
                                with_secret(rank_environment(1, 2, port))};
  environments[0].insert(environments[0].end(), zero_more.begin(), zero_more.end());
  environments[1].insert(environments[1].end(), one_more.begin(), one_more.end());
  for (Environment& environment : environments)  // of two values for a name the later wins
    for (size_t i = 0; i < environment.size(); ++i)
      for (size_t k = i + 1; k < environment.size(); ++k)
        if (environment[i].first == environment[k].first)
          environment[i].second = environment[k].second;
  Program first, second;
  if (!one.empty() && one[0] == "another file") {
    std::ifstream in(first.job());
    std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    text.replace(text.find("seq_len = 40"), 12, "seq_len = 39");
    text.replace(text.find("lr = 1e-3"), 9, "lr = 2e-3");
    std::ofstream(second.job()) << text;
  } else {
    second.share(first);
  }
  first.start(zero, environments[0]);
  second.start(second.job() == first.job() ? one : std::vector<std::string>(), environments[1]);
  Ended second_ended = second.wait();
  return {first.wait(), second_ended};
}

}  // namespace

TEST_CASE("a rank that is missing is named by those that came, within the timeout and a little") {
  int port = free_port();
  Program zero, two;
  two.share(zero);
  zero.start({}, rank_environment(0, 3, port));
  two.start({}, rank_environment(2, 3, port));
  for (Ended& ended : std::vector<Ended>{zero.wait(), two.wait()}) {
    CAPTURE(ended.err);
    CHECK(ended.code == 4);
    CHECK(ended.says("error[E0502]: all timed out after 3.0 s at 127.0.0.1:" +
                     std::to_string(port) + ": there is no rank 1 of 3\n"));
    CHECK(ended.says("help: start as many processes as WORLD_SIZE says"));
    CHECK(!ended.says("frame #"));
    CHECK(ended.seconds < 12);
  }
}

TEST_CASE(
    "ranks that do not mean the same job: the odd one is named on every rank before anything is "
    "made, exit status 4" *
    doctest::test_suite("whole")) {
  struct Row {
    std::vector<std::string> zero, one;
    Environment zero_more, one_more;
    std::string code, words;
  };
  const std::vector<Row> rows = {
      {{},
       {"--set", "optimizer.lr=2e-3"},
       {},
       {},
       "E0503",
       "rank 1 has optimizer.lr 0.002, the others 0.001\n"},
      {{},
       {"another file"},
       {},
       {},
       "E0503",
       "rank 1 has optimizer.lr 0.002, the others 0.001; dataset.seq_len 39, the others 40\n"},
      {{}, {"--set", "distributed.strategy=ddp"}, {}, {}, "E0503", "rank 1 has plugin ddp "},
      {{},
       {"--set", "model.torch_dtype=bfloat16"},
       {},
       {},
       "E0503",
       "rank 1 has model.torch_dtype \"bfloat16\", the others \"float32\"\n"},
      {{}, {}, {}, {{"WORLD_SIZE", "3"}}, "E0503", "rank 1 has WORLD_SIZE 3, rank 0 has 2\n"},
      {{}, {}, {{"WORLD_SIZE", "3"}}, {}, "E0503", "rank 1 has WORLD_SIZE 2, rank 0 has 3\n"},
  };
  for (const Row& row : rows) {
    INFO(std::string(row.words));
    Both both = run_two(row.zero, row.one, row.zero_more, row.one_more);
    for (const Ended& ended : {both.zero, both.one}) {
      CAPTURE(ended.err);
      CHECK(ended.code == 4);
      CHECK(ended.says("error[" + row.code + "]: " + row.words));
      CHECK(ended.says("help: start "));
      CHECK(ended.seconds < 12);
    }
  }
}

TEST_CASE("two processes with one rank number, and a launcher's variables that make no sense") {
  int port = free_port();
  Program zero, one, again;
  one.share(zero);
  again.share(zero);
  // Of three, so that rank 0 still waits when the second rank 1 comes.
  zero.start({"--set", "dist_env.timeout_minutes=1"}, with_secret(rank_environment(0, 3, port)));
  one.start({"--set", "dist_env.timeout_minutes=1"}, with_secret(rank_environment(1, 3, port)));
  again.start({"--set", "dist_env.timeout_minutes=1"}, with_secret(rank_environment(1, 3, port)));
  for (Ended& ended : std::vector<Ended>{zero.wait(), one.wait(), again.wait()}) {
    CAPTURE(ended.err);
    CHECK(ended.code == 4);
    CHECK(ended.says("error[E0501]: two processes have RANK 1"));
    CHECK(ended.says("help: "));
    CHECK(ended.seconds < 30);
  }
  struct Row {
    Environment environment;
    const char* words;
  };
  for (const Row& row :
       {Row{{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK = 2 is not below WORLD_SIZE = 2"},
        Row{{{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "MASTER_ADDR is not set"},
        Row{{{"WORLD_SIZE", "2"}}, "RANK is not set"},
        Row{{{"RANK", "0"}, {"WORLD_SIZE", "two"}},
            "WORLD_SIZE = \"two\" is not a whole number"}}) {
    Program program;
    Ended ended = program.run({}, row.environment);
    CAPTURE(ended.err);
    CHECK(ended.code == 4);
    CHECK(ended.says("error[E0501]"));
    CHECK(ended.says(row.words));
    CHECK(ended.says("help: "));
  }
}

TEST_CASE("a port that another program has: rank 0 says so at once, others soon, exit status 4" *
          doctest::test_suite("whole")) {
  for (bool hangs_up : {false, true}) {
    CAPTURE(hangs_up);
    Stranger stranger(hangs_up);
    Program zero, one;
    zero.start({}, rank_environment(0, 2, stranger.port));
    one.start({}, rank_environment(1, 2, stranger.port));
    Ended first = zero.wait(), second = one.wait();
    CAPTURE(first.err);
    CAPTURE(second.err);
    CHECK(first.code == 4);
    CHECK(first.says("error[E0502]: rank 0 cannot listen on 127.0.0.1:" +
                     std::to_string(stranger.port) + ": Address already in use\n"));
    CHECK(first.says("help: set MASTER_PORT"));
    CHECK(first.seconds < 10);
    CHECK(second.code == 4);
    CHECK(second.says("error[E0502]: rank 1 could not reach the store of rank 0"));
    CHECK(second.says("help: another program may have the port"));
    CHECK(!second.says("frame #"));
    CHECK(second.seconds < 14);
  }
  // A job that may span hosts listens where MASTER_ADDR says.
  Stranger stranger(false, INADDR_ANY);
  Environment environment = rank_environment(0, 2, stranger.port);
  environment.insert(environment.end(), {{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}});
  Program zero;
  Ended ended = zero.run({}, environment);
  CAPTURE(ended.err);
  CHECK(ended.code == 4);
  CHECK(ended.says("error[E0502]: rank 0 cannot listen on 127.0.0.1:" +
                   std::to_string(stranger.port) + ": Address already in use\n"));
}

TEST_CASE(
    "a rank with another secret, or none, ends at once with status 4; the others name it when "
    "their "
    "time is over" *
    doctest::test_suite("whole")) {
  struct Row {
    Environment one;
    const char *told, *refused;
  };
  for (const Row& row : {Row{{{"MESHWRIGHT_JOB_SECRET", "a secret of another"}},
                             "the two do not have the same MESHWRIGHT_JOB_SECRET",
                             "which does not know the job's secret"},
                         Row{{},
                             "the job has a secret, and MESHWRIGHT_JOB_SECRET is not set here",
                             "which has no secret"}}) {
    const int port = free_port();
    Program zero, one;
    one.share(zero);
    Environment environment = rank_environment(1, 2, port);
    environment.insert(environment.end(), row.one.begin(), row.one.end());
    zero.start({}, with_secret(rank_environment(0, 2, port)));
    one.start({}, environment);
    Ended second = one.wait(), first = zero.wait();
    CAPTURE(first.err);
    CAPTURE(second.err);
    CHECK(second.code == 4);
    CHECK(second.says("error[E0502]: rank 1 was refused by rank 0 at 127.0.0.1:" +
                      std::to_string(port) + ": " + row.told));
    CHECK(!second.says("a secret of"));
    CHECK(first.code == 4);
    CHECK(first.says("there is no rank 1 of 2; refused: 127.0.0.1, " + std::string(row.refused)));
    CHECK(first.seconds < 14);
  }
  Program weak;
  Environment environment = rank_environment(0, 2, free_port());
  environment.emplace_back("MESHWRIGHT_JOB_SECRET", "guess me");
  Ended ended = weak.run({}, environment);
  CHECK(ended.code == 4);
  CHECK(ended.says("error[E0501]: MESHWRIGHT_JOB_SECRET has 8 characters"));
  CHECK(!ended.says("guess me"));
}

TEST_CASE(
    "a master that is not there: refused, silent or without a name, within the timeout and a "
    "little, exit status 4" *
    doctest::test_suite("whole")) {
  struct Row {
    const char *address, *why;
  };
  for (const Row& row : {Row{"127.0.0.1", "Connection refused"}, Row{"no.such.host.invalid", ""}}) {
    INFO(std::string(row.address));
    Program program;
    Environment environment = rank_environment(1, 2, free_port());
    environment[2].second = row.address;
    environment.insert(environment.end(), {{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}});
    Ended ended = program.run({}, environment);
    CAPTURE(ended.err);
    CHECK(ended.code == 4);
    CHECK(ended.says("error[E0502]: rank 1 could not reach the store of rank 0 at " +
                     std::string(row.address) + ":"));
    CHECK(ended.says(" within 3.0 s: " + std::string(row.why)));
    CHECK(ended.says("help: check that rank 0 runs"));
    CHECK(!ended.says("frame #"));
    CHECK(ended.seconds > 2.5);
    CHECK(ended.seconds < 12);
  }
}
