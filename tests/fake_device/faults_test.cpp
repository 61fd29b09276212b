// What becomes of a job on the fake device when its memory ends, a collective never ends, or a rank
// is killed or stopped: the messages and exit codes that a job on the CPU has (tests/faults).
#include <doctest/doctest.h>

#include <boost/json/parse.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "../faults/program.h"

namespace faults_test {

using faults::check_ended, faults::job_words;
using faults::Ended;
using faults::Environment;
using faults::Program;
using Strings = faults::Words;

Strings arguments(const Strings& sets = {}) { return job_words(2, {"dist_env.device=cuda"}, sets); }
Environment environment(const Environment& more = {}) {
  Environment out{{"FAKE_DEVICE_LIBRARIES", FAKE_DEVICE_LIBRARIES}, {"OMP_NUM_THREADS", "1"}};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

// Layouts beside fsdp2's: of two ranks as well.
const Strings kExperts{"model.pretrained=" MESHWRIGHT_SOURCE_DIR "/tests/data/parity/mixtral",
                       "distributed.strategy=moe_ep", "distributed.ep_size=2"},
    kStages{"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1F1B",
            "distributed.pipeline.first_stage_less_layers=1"};

// Of two ranks, on the device.
struct Job {
  Program program;
  Job() { program.launcher({MESHWRIGHT_SOURCE_DIR "/tests/fake_device/run"}); }
  Ended run(const Strings& sets, const Environment& more) {
    program.start(arguments(sets), environment(more));
    return program.wait();
  }
  // In the middle of its steps a rank gets a signal.
  Ended hit(int64_t victim, int signal, const Strings& sets = {}, const Environment& more = {}) {
    program.start(arguments(sets), environment(more));
    const pid_t pid = program.rank(victim);
    program.wait_for_steps(3);
    program.mark();
    ::kill(pid, signal);
    return program.wait();
  }
};

}  // namespace faults_test

using namespace faults_test;

TEST_CASE("a device whose memory ends is told, with what was asked for") {
  Job job;
  // Enough for weights, not for 32 samples at once.
  const Ended ended =
      job.run({"step_scheduler.local_batch_size=32", "step_scheduler.global_batch_size=64"},
              {{"FAKE_DEVICE_MEMORY", "25165824"}});
  CAPTURE(ended.err);
  check_ended(ended, 4,
              {"error[E0508]: CUDA out of memory. Tried to allocate ",
               "step_scheduler.local_batch_size", "set dist_env.expandable_segments = true"},
              {"PYTORCH_"});
  // What held it, and what LibTorch's allocator has.
  CHECK(ended.says(" in tensors: weights "));
  CHECK(ended.says(", activations "));
  CHECK(ended.says("note: its largest units then: "));
  bool found = false;
  for (const char* rank : {"rank_0", "rank_1"}) {
    const std::filesystem::path file = job.program.run_folder() / "memory" / rank;
    std::ifstream held(file.string() + ".json"), snapshot(file.string() + ".snapshot.json");
    if (!held || !snapshot) continue;
    found = true;
    const boost::json::value allocator =
        boost::json::parse(std::string(std::istreambuf_iterator<char>(snapshot), {}));
    int64_t allocated = 0;
    for (const boost::json::value& segment : allocator.at("segments").as_array())
      for (const boost::json::value& block : segment.at("blocks").as_array())
        if (block.at("allocated").as_bool()) allocated += block.at("requested_size").as_int64();
    const boost::json::value all =
        boost::json::parse(std::string(std::istreambuf_iterator<char>(held), {}));
    CHECK(allocated > 0);
    CHECK(allocated <= all.at("live").as_int64());
    CHECK(all.at("kinds").at("weights").at("bytes").as_int64() > 0);
    CHECK(all.at("kinds").at("gathered parameters").at("bytes").as_int64() > 0);
    CHECK(all.at("kinds").at("activations").at("bytes").as_int64() > 0);
    bool of_layer = false;
    for (const boost::json::value& buffer : all.at("buffers").as_array())
      of_layer = of_layer || buffer.at("what") == "activations of model.layers.0";
    CHECK(of_layer);
  }
  CHECK(found);
}

TEST_CASE(
    "a collective that never ends: rank, group and operation after the timeout, exit code 6") {
  struct Row {
    std::string name;
    Strings sets;
    Environment hangs;
    Strings says = {};
  };
  for (const Row& row :
       {Row{"fsdp2", {}, {{"FAKE_DEVICE_HANG_AT", "120"}}},
        // Texts of all ranks, whose lengths lie beside them.
        Row{"before the first step",
            {},
            {{"FAKE_DEVICE_HANG_IN", "all_gather"}, {"FAKE_DEVICE_HANG_AT", "2"}},
            {"all_gather of ", " in group world "}},
        Row{"stages",
            kStages,
            {{"FAKE_DEVICE_HANG_IN", "send and receive"}, {"FAKE_DEVICE_HANG_AT", "20"}},
            {" in group pp ", " of the pipeline, which "}}}) {
    CAPTURE(row.name);
    Job job;
    const Ended ended = job.run(row.sets, row.hangs);
    CAPTURE(ended.err);
    check_ended(ended, 6,
                {"error[E0601]: rank ", " waited 3 s in vain for ", " in group ", " [0, 1]"});
    for (const std::string& part : row.says) CHECK_MESSAGE(ended.says(part), part);
    CHECK(ended.seconds < 40);
  }
}

TEST_CASE("an error that NCCL finds after the call ends all at once, long before the timeout") {
  Job job;
  const Ended ended =
      job.run({"dist_env.timeout_minutes=1"}, {{"FAKE_DEVICE_NCCL_ERROR_AT", "120"}});
  CAPTURE(ended.err);
  check_ended(ended, 6, {"error[E0602]: rank "});
  // Of a collective that is waited for its handle says it, of others the communicator.
  const bool told = ended.says("NCCL error: ") || ended.says("NCCL's communicator failed");
  CHECK(told);
  CHECK(ended.seconds < 30);
}

TEST_CASE("SIGKILL of a rank on a device: it is named, all end at once, exit code 137") {
  struct Row {
    Strings sets;
    int64_t victim;
  };
  // Of a rank that waits in a collective, in the host's read of sizes, and in a message.
  for (const Row& row : {Row{{}, 0}, Row{kExperts, 1}, Row{kStages, 0}}) {
    CAPTURE(row.victim);
    Strings sets = row.sets;
    sets.emplace_back("dist_env.timeout_minutes=1");
    Job job;
    const Ended ended = job.hit(row.victim, SIGKILL, sets);
    CAPTURE(ended.err);
    check_ended(ended, 137,
                {"error[E0505]: rank " + std::to_string(row.victim) +
                 " was ended by signal 9 (SIGKILL)\n"});
    CHECK(ended.seconds < 10);
  }
}

// Of rank 1, whom rank 0 is left to name by itself: below.
TEST_CASE("SIGSTOP of a rank on a device: it is named after the timeout, exit code 6") {
  Job job;
  const Ended ended = job.hit(0, SIGSTOP);
  CAPTURE(ended.err);
  check_ended(ended, 6,
              {"error[E0601]: rank 1 waited 3 s in vain for ", " [0, 1]: no word from rank 0\n",
               "rank 0 (process "});
  CHECK(ended.seconds < 12);
}

TEST_CASE("a rank on a device that is left alone names the other one, exit code 6") {
  struct Row {
    int victim, signal;
    const char *minutes, *says;
  };
  for (const Row& row : {Row{0, SIGKILL, "1", "failed: rank 0 ended"},
                         Row{1, SIGSTOP, "0.05", "no word from rank 1"}}) {
    CAPTURE(row.victim);
    CAPTURE(row.signal);
    const int port = free_port();
    Job jobs[2];
    jobs[1].program.share(jobs[0].program);
    for (int rank : {0, 1}) {
      Environment all = environment(faults::rank_environment(rank, 2, port));
      all.emplace_back("LOCAL_RANK", std::to_string(rank));
      jobs[rank].program.start({"--set", "dist_env.device=cuda", "--set",
                                std::string("dist_env.timeout_minutes=") + row.minutes},
                               all);
    }
    Program &victim = jobs[row.victim].program, &other = jobs[1 - row.victim].program;
    jobs[0].program.wait_for_steps(2);
    other.mark();
    ::kill(victim.pid(), row.signal);
    const Ended ended = other.wait();
    CAPTURE(ended.err);
    check_ended(ended, 6, {" [0, 1]", row.says});
    CHECK(ended.seconds < 12);
    ::kill(victim.pid(), SIGKILL);
    victim.wait();
  }
}

TEST_CASE("without a launcher all ranks on devices end at once with the error of one") {
  const int port = free_port();
  Job zero, one;
  one.program.share(zero.program);
  zero.program.mark();
  for (auto [rank, job] : {std::pair{0, &zero}, std::pair{1, &one}}) {
    Environment all = environment(faults::rank_environment(rank, 2, port));
    all.emplace_back("LOCAL_RANK", std::to_string(rank));
    if (rank == 1) all.emplace_back("FAKE_DEVICE_MEMORY", "25165824");
    job->program.start(
        {"--set", "dist_env.device=cuda", "--set", "dist_env.timeout_minutes=2", "--set",
         "step_scheduler.local_batch_size=32", "--set", "step_scheduler.global_batch_size=64"},
        all);
  }
  const Ended ended = zero.program.wait();
  CAPTURE(ended.err);
  check_ended(ended, 4, {"error[E0508]: CUDA out of memory. Tried to allocate ", "rank 1"});
  CHECK(ended.seconds < 60);
  CHECK(one.program.wait().code == 4);
}
