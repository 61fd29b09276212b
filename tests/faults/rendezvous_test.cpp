// Processes that cannot meet, or should not, end soon with the status of it. The words for each
// reason: engine/launch/rendezvous/tests, for each variable: engine/launch/tests/ranks_test.cpp.
#include <doctest/doctest.h>

#include <fstream>
#include <iterator>

#include "program.h"

using namespace faults;

namespace {

struct Both {
  Ended zero, one;
};

// By which ranks prove to be of one job: then a mistake of one ends all.
const Environment kSecret = {{"MESHWRIGHT_JOB_SECRET", "a secret of this job"}};

Environment with_secret(Environment environment) {
  environment.insert(environment.end(), kSecret.begin(), kSecret.end());
  return environment;
}

// Two processes as a launcher would start them, the second with other arguments, or, where there
// are none, another file.
Both run_two(const Words& one) {
  int port = free_port();
  Program first, second;
  if (one.empty()) {
    std::ifstream in(first.job());
    std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    text.replace(text.find("seq_len = 40"), 12, "seq_len = 39");
    text.replace(text.find("lr = 1e-3"), 9, "lr = 2e-3");
    std::ofstream(second.job()) << text;
  } else {
    second.share(first);
  }
  first.start({}, with_secret(rank_environment(0, 2, port)));
  second.start(one, with_secret(rank_environment(1, 2, port)));
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
    check_ended(ended, 4,
                {"error[E0502]: all timed out after 3.0 s at 127.0.0.1:" + std::to_string(port) +
                     ": there is no rank 1 of 3\n",
                 "help: start as many processes as WORLD_SIZE says"},
                {"frame #"});
    CHECK(ended.seconds < 12);
  }
}

TEST_CASE(
    "ranks that do not mean the same job: the odd one is named on every rank before anything is "
    "made, exit status 4" *
    doctest::test_suite("whole")) {
  struct Row {
    Words one;
    std::string words;
  };
  for (const Row& row :
       {Row{{},
            "rank 1 has optimizer.lr 0.002, the others 0.001; dataset.seq_len 39, the others 40\n"},
        Row{{"--set", "distributed.strategy=ddp"}, "rank 1 has plugin ddp "},
        Row{{"--set", "model.torch_dtype=bfloat16"},
            "rank 1 has model.torch_dtype \"bfloat16\", the others \"float32\"\n"}}) {
    INFO(std::string(row.words));
    Both both = run_two(row.one);
    for (const Ended& ended : {both.zero, both.one}) {
      CAPTURE(ended.err);
      check_ended(ended, 4, {"error[E0503]: " + row.words, "help: start "});
      CHECK(ended.seconds < 12);
    }
  }
}
