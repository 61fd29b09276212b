// Ranks that share samples: one that is killed or stopped in the middle of a step is named, and who
// waited for it in attention says in which layer and direction.
#include <doctest/doctest.h>

#include <csignal>
#include <random>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "program.h"

using namespace faults;

namespace {

const std::vector<std::string> kMethods = {"all_gather", "ring", "ulysses"};

// Exchanges of keys are nearly all that the ranks wait for: six micro-batches a step, and layers
// that are gathered once for all of them.
std::vector<std::string> shared_samples(const std::string& method) {
  std::vector<std::string> out;
  for (const std::string& set :
       {std::string("distributed.cp_size=2"), "distributed.context.method=" + method,
        std::string("distributed.fsdp2.reshard_after_forward=false")})
    out.insert(out.end(), {"--set", set});
  return out;
}

// Whether the survivor waited in attention; it then says where.
bool waited_in_attention(const Ended& ended) {
  static const std::regex where(
      "error\\[E060[12]\\]: rank 0[^\\n]* in group cp \\[0, 1\\][^\\n]*, in attention of "
      "model\\.layers\\.[0-9]\\.self_attn\\.core, (forward|backward)\\n");
  CHECK(ended.says(" in group cp [0, 1]") == ended.says(", in attention of "));
  return std::regex_search(ended.err, where);
}

void pause(std::mt19937& random) {
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
}

}  // namespace

TEST_CASE("SIGKILL of a rank of cp at any moment: it is named, all end at once") {
  std::mt19937 random(std::random_device{}());
  for (const std::string& method : kMethods) {
    INFO(method);
    Program program;
    std::vector<std::string> arguments = shared_samples(method);
    arguments.insert(arguments.end(), {"--nproc", "2", "--set", "dist_env.timeout_minutes=1"});
    program.start(arguments);
    pid_t pid = program.rank(1);
    program.wait_for_steps(2);
    pause(random);
    program.mark();
    ::kill(pid, SIGKILL);
    Ended ended = program.wait();
    CAPTURE(ended.err);
    CHECK(ended.code == 137);
    CHECK(ended.says("error[E0505]: rank 1 was ended by signal 9 (SIGKILL)\n"));
    CHECK(ended.seconds < 10);
  }
}

TEST_CASE(
    "a rank of cp that is stopped or killed is named by the one that waits, exit status 6, with "
    "the layer and direction of an exchange of keys") {
  std::mt19937 random(std::random_device{}());
  int in_attention = 0;
  for (const std::string& method : kMethods)
    for (int signal : {SIGSTOP, SIGKILL}) {
      INFO(method);
      CAPTURE(signal);
      const int port = free_port();
      Program zero, one;
      one.share(zero);
      zero.start(shared_samples(method), rank_environment(0, 2, port));
      one.start(shared_samples(method), rank_environment(1, 2, port));
      zero.wait_for_steps(2);
      pause(random);
      zero.mark();
      ::kill(one.pid(), signal);
      Ended ended = zero.wait();
      CAPTURE(ended.err);
      CHECK(ended.code == 6);
      CHECK(ended.seconds < 9);
      if (signal == SIGSTOP) {
        CHECK(ended.says("error[E0601]: rank 0 waited 3 s in vain for "));
        CHECK(ended.says(" [0, 1]: no word from rank 1"));
      } else {
        CHECK(ended.says("error[E0602]: rank 0: "));
        CHECK(ended.says(" [0, 1] failed: "));
        CHECK(ended.says("rank 1"));
      }
      in_attention += waited_in_attention(ended) ? 1 : 0;
      ::kill(one.pid(), SIGKILL);
      one.wait();
    }
  CHECK(in_attention > 0);
}
