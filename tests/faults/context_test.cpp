// Ranks that share samples: one that is killed or stopped in the middle of a step is named, and who
// waited for it in attention says in which layer and direction.
#include <doctest/doctest.h>

#include <csignal>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "program.h"
#include "victims.h"

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

}  // namespace

TEST_CASE("SIGKILL of a rank of cp at any moment: it is named, all end at once" *
          doctest::test_suite("whole")) {
  std::mt19937 random(std::random_device{}());
  for (const std::string& method : kMethods) {
    INFO(method);
    check_killed(shared_samples(method), 1, random);
  }
}

TEST_CASE(
    "a rank of cp that is stopped or killed is named by the one that waits, exit status 6, with "
    "the layer and direction of an exchange of keys" *
    doctest::test_suite("whole")) {
  std::mt19937 random(std::random_device{}());
  int in_attention = 0;
  for (const std::string& method : kMethods)
    for (int signal : {SIGSTOP, SIGKILL}) {
      INFO(method);
      in_attention +=
          waited_in_attention(check_left_alone(shared_samples(method), signal, random)) ? 1 : 0;
    }
  CHECK(in_attention > 0);
}
