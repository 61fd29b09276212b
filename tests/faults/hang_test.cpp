// What a run that hung, died or found no memory leaves for whoever asks why: comm_traces and its
// verdict, memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <csignal>
#include <fstream>
#include <map>
#include <thread>

#include "apps/observe/flight_recorder/verdict.h"
#include "program.h"

using namespace faults;
namespace fs = std::filesystem;
using namespace meshwright;

namespace {

const std::string kPlugin =
    MESHWRIGHT_BUILD_DIR "/fixtures/plugins/libmeshwright_fixture_misbehaves.so";

Words misbehaving(const Words& sets = {}, int64_t ranks = 2) {
  return job_words(
      ranks, {"plugins.load=[\"" + kPlugin + "\"]", "distributed.strategy=fixture_misbehaves"},
      sets);
}

fs::path traces(const Program& program) { return program.run_folder() / "comm_traces"; }
bool left_record(const Program& program, int64_t rank) {
  return fs::exists(traces(program) / ("rank_" + std::to_string(rank) + ".json"));
}
}  // namespace

TEST_CASE("a rank that is stopped in a step: the verdict names it, the collective and its group") {
  Program program;
  program.start({"--nproc", "3"});
  const pid_t pid = program.rank(1);
  program.wait_for_steps(3);
  ::kill(pid, SIGSTOP);
  const Ended ended = program.wait();
  CAPTURE(ended.err);
  check_ended(ended, 6, {"error[E0601]: rank "});
  const postmortem::Verdict verdict = postmortem::judge_run(program.run_folder());
  CAPTURE(verdict.text());
  REQUIRE(!verdict.sentences.empty());
  CHECK(verdict.ranks == std::vector<int64_t>{1});
  const std::string& first = verdict.sentences[0];
  CHECK(first.starts_with("rank 1 "));
  CHECK(first.find(" [0, 1, 2]") != std::string::npos);
  CHECK(first.find(" since ") != std::string::npos);
  CHECK((left_record(program, 0) && left_record(program, 2)));
  CHECK(ended.says("verdict: " + first + "\n"));
  CHECK(read_file(traces(program) / "verdict.txt").starts_with(first));
  CHECK(read_file(program.run_folder() / "run.log").find(first) != std::string::npos);
}

TEST_CASE("a rank that never comes out of its own code leaves its record, and is named by it") {
  Program program;
  const Ended ended =
      program.run(misbehaving(), {{"FIXTURE_MISBEHAVES", "hang in step of rank 1"}});
  CAPTURE(ended.err);
  CHECK(ended.code == 6);
  CHECK((left_record(program, 0) && left_record(program, 1)));
  const postmortem::Folder records = postmortem::read_folder(traces(program));
  REQUIRE(records.files.size() == 2);
  CHECK(records.files[0].why.starts_with("error[E0601]: rank 0 waited 3 s in vain for "));
  CHECK(records.files[0].error);
  CHECK(records.files[1].why == "told to end by the launcher");
  CHECK(records.files[1].record.collectives.size() > 10);
  const postmortem::Verdict verdict = postmortem::judge_run(traces(program).parent_path());
  REQUIRE(verdict.sentences.size() == 1);
  CAPTURE(verdict.sentences[0]);
  CHECK(verdict.sentences[0].starts_with("rank 1 has not entered "));
  CHECK(verdict.sentences[0].find(", in which rank 0 waits since ") != std::string::npos);
  CHECK(verdict.sentences[0].find("; the last it did was ") != std::string::npos);
  CHECK(ended.says("verdict: " + verdict.sentences[0] + "\n"));
  CHECK(ended.seconds < 30);
}

TEST_CASE("a rank that enters another collective than the others is told with both") {
  Program program;
  const Ended ended = program.run(misbehaving(), {{"FIXTURE_MISBEHAVES", "other collective"}});
  CAPTURE(ended.err);
  CHECK(ended.code != 0);
  CHECK(ended.says("verdict: rank 1 entered all_gather #"));
  CHECK(ended.says(", where rank 0 entered "));
  CHECK(ended.says(" in group world [0, 1]\n"));
}

TEST_CASE("a rank that ends by its own error: the verdict quotes it, but is not told beside it") {
  Program program;
  const Ended ended = program.run(misbehaving({"dist_env.timeout_minutes=1"}),
                                  {{"FIXTURE_MISBEHAVES", "own error in step of rank 1"}});
  CAPTURE(ended.err);
  check_ended(ended, 2, {"error[E0450]: not on Mondays"}, {"verdict: "});
  const std::string verdict = read_file(traces(program) / "verdict.txt");
  CAPTURE(verdict);
  CHECK(verdict.starts_with("rank 1 has not entered "));
  CHECK(verdict.find("; it ended with error[E0450]: not on Mondays") != std::string::npos);
}

TEST_CASE(
    "told twice to end while a rank hangs: the records are there, and what an earlier run left is "
    "not") {
  Program program;
  fs::create_directories(traces(program));
  std::ofstream(traces(program) / "rank_7.json") << "{}";
  program.start(misbehaving({"dist_env.timeout_minutes=1"}),
                {{"FIXTURE_MISBEHAVES", "hang in step of rank 1"}});
  program.rank(1);
  program.wait_for_steps(2);
  ::kill(program.pid(), SIGINT);
  for (int i = 0; i < 1000 && !(left_record(program, 0) && left_record(program, 1)); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // no repetition of the same request
  ::kill(program.pid(), SIGINT);
  const Ended ended = program.reap();
  CAPTURE(ended.err);
  check_ended(ended, 130, {"verdict: rank 1 has not entered "});
  CHECK(!left_record(program, 7));
}

TEST_CASE("a run that ends well leaves no record, nor does one that was told to end") {
  for (bool told : {false, true}) {
    Program program;
    program.start({"--nproc", "2", "--set",
                   "step_scheduler.max_steps=" + std::string(told ? "1000000" : "3")});
    if (told) {
      program.wait_for_steps(2);
      ::kill(program.pid(), SIGINT);
    }
    const Ended ended = program.wait();
    CAPTURE(ended.err);
    CHECK(ended.code == (told ? 75 : 0));
    CHECK(!fs::exists(traces(program)));
    CHECK(!fs::exists(program.run_folder() / "memory"));
    CHECK(!ended.says("verdict"));
  }
}

TEST_CASE("where memory ends, the error says what held it, and a file all of it") {
  Program program;
  const Ended ended =
      program.run(misbehaving(), {{"FIXTURE_MISBEHAVES", "out of memory in step of rank 1"}});
  CAPTURE(ended.err);
  check_ended(
      ended, 4,
      {"error[E0508]: ", "note: rank 1 asked for 4.0 PiB more than ", " in tensors: weights ",
       ", gradients ", ", optimizer state ", "; the plan says ", "note: all of it is in "});
  const boost::json::value held =
      boost::json::parse(read_file(program.run_folder() / "memory/rank_1.json"));
  const boost::json::object& kinds = held.at("kinds").as_object();
  int64_t sum = 0;
  for (const auto& [name, kind] : kinds) sum += kind.at("bytes").as_int64();
  CHECK(sum >= held.at("live").as_int64());
  // AdamW: two values for each weight, all of float32.
  const int64_t weights = kinds.at("weights").at("bytes").as_int64();
  CHECK(weights > 0);
  CHECK(kinds.at("gradients").at("bytes").as_int64() == weights);
  CHECK(kinds.at("optimizer state").at("bytes").as_int64() == 2 * weights);
  CHECK(kinds.at("weights").at("planned").as_int64() == weights);
  CHECK(!held.at("buffers").as_array().empty());
  CHECK(!fs::exists(program.run_folder() / "memory/rank_0.json"));
}

TEST_CASE("where memory ends in a step, each layer has what it keeps for its backward pass") {
  Program program;
  const Ended ended =
      program.run(misbehaving({}, 0), {{"FIXTURE_MISBEHAVES", "out of memory in backward"}});
  CAPTURE(ended.err);
  check_ended(ended, 4, {", activations ", "note: its largest units then: "});
  const boost::json::value held =
      boost::json::parse(read_file(program.run_folder() / "memory/rank_0.json"));
  std::map<std::string, int64_t> of;
  int64_t sum = 0;
  for (const boost::json::value& buffer : held.at("buffers").as_array())
    if (const std::string what(buffer.at("what").as_string());
        what.starts_with("activations of ")) {
      CHECK(what == "activations of " + std::string(buffer.at("unit").as_string()));
      sum += of[what] = buffer.at("bytes").as_int64();
    }
  CHECK(sum == held.at("kinds").at("activations").at("bytes").as_int64());
  // Layers are alike; beside them only the root has some.
  CHECK(of["activations of model.layers.0"] > 0);
  CHECK(of["activations of model.layers.1"] == of["activations of model.layers.0"]);
  CHECK(of["activations of the root"] > 0);
  CHECK(of["activations of model.layers.2"] == of["activations of model.layers.0"]);
  CHECK(of.size() == 4);
}
