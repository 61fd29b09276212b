// A plugin's data set that faults, in the step or in a thread that reads ahead: told as its fault,
// at the step that wanted the sample.
#include <doctest/doctest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <fstream>
#include <string>
#include <vector>

#include "program.h"
#include "sdk/comm/tests/sampled.h"

namespace data_test {

using namespace faults;
namespace fs = std::filesystem;

namespace {

const std::string kPlugin =
    MESHWRIGHT_BUILD_DIR "/fixtures/plugins/libmeshwright_fixture_numbers.so";

Words arguments(int64_t ranks, const Words& sets = {}) {
  return job_words(ranks,
                   {"plugins.load=[\"" + kPlugin + "\"]", "dataset.plugin=fixture_numbers",
                    "dataset.path=none", "dataset.shuffle=false",
                    "step_scheduler.global_batch_size=4", "step_scheduler.local_batch_size=2",
                    "step_scheduler.max_steps=6", "dist_env.timeout_minutes=1"},
                   sets);
}

}  // namespace

TEST_CASE("a plugin's data train, with threads and without to the same numbers, and tell of it" *
          doctest::test_suite("whole")) {
  Words truth;
  for (const char* workers : {"0", "1", "3"}) {
    CAPTURE(workers);
    Program program;
    const Ended ended = program.run(arguments(
        2, {std::string("dataset.workers=") + workers, "validation_dataset.plugin=counting",
            "validation_dataset.fixture_numbers.step=5", "validation_dataset.every_steps=2",
            "validation_dataset.num_batches=2",
            std::string("validation_dataset.workers=") + workers}));
    CAPTURE(ended.err);
    CHECK(ended.code == 0);
    CHECK(ended.out.find("data: counts by 3, 40 samples") != std::string::npos);
    CHECK(ended.out.find("validation: counts by 5") != std::string::npos);
    CHECK(ended.out.find("dataset: nothing was left out") != std::string::npos);
    if (truth.empty()) truth = training_rows(program);
    CHECK(truth.size() == 9);
    CHECK(training_rows(program) == truth);
  }
}

TEST_CASE("each rank prepares a plugin's data once and opens them once, counted in epochs too") {
  struct Row {
    Words sets;
    size_t steps;
  };
  // Of 40 samples an epoch is ten steps of four.
  for (const Row& row : {Row{{"step_scheduler.max_steps=3"}, 3},
                         Row{{"step_scheduler.max_steps=none", "step_scheduler.epochs=1"}, 10}}) {
    CAPTURE(row.steps);
    Program program;
    const fs::path file = program.folder() / "calls";
    const Ended ended =
        program.run(arguments(2, row.sets), {{"FIXTURE_DATA_CALLS", file.string()}});
    CAPTURE(ended.err);
    CHECK(ended.code == 0);
    CHECK(training_rows(program).size() == row.steps);
    Words calls;
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);) calls.push_back(line);
    std::sort(calls.begin(), calls.end());
    CHECK(calls == Words{"0 open", "0 prepare", "1 open", "1 prepare"});
  }
}

TEST_CASE("a fault of a data set is the plugin's: its name, version, method and rank") {
  struct Row {
    const char *fault, *place, *says;
    int code;
    bool of_rank;  // else found before ranks start
  };
  for (const Row& row :
       {Row{"throw", "read",
            "error[E0421]: an exception of type std::runtime_error left the plugin", 2, false},
        Row{"throw 42", "fingerprint", "error[E0421]: something that is no exception", 2, true},
        Row{"throw", "open", "error[E0421]: an exception of type std::runtime_error", 2, false},
        Row{"throw", "prepare", "error[E0421]: an exception of type std::runtime_error", 2, false},
        Row{"throw", "validate", "error[E0421]: an exception of type std::runtime_error", 2, false},
        Row{"own error", "read", "error[E0450]: not on Mondays", 2, false},
        Row{"segfault", "fingerprint", "crashed in fingerprint", 2, true},
        Row{"exit", "fingerprint", "called exit() in fingerprint", 2, true}}) {
    CAPTURE(row.fault);
    CAPTURE(row.place);
    Program program;
    const Ended ended =
        program.run(arguments(2), {{"FIXTURE_DATA", std::string(row.fault) + " in " + row.place}});
    CAPTURE(ended.err);
    check_ended(ended, row.code,
                {row.says, "plugin fixture_numbers 1.0.0 (" + kPlugin + ")", row.place});
    if (row.of_rank) CHECK(ended.says(", on rank "));
  }
}

TEST_CASE("a fault in a sample ends the step that wanted it, whichever thread read it" *
          doctest::test_suite("whole")) {
  struct Row {
    const char *fault, *says;
  };
  size_t number = 0;  // half: each in the step or in a thread, in turns
  for (const Row& row :
       {Row{"throw",
            "error[E0421]: an exception of type std::runtime_error left the plugin: made "
            "of glass"},
        Row{"throw 42", "error[E0421]: something that is no exception, of type int"},
        Row{"own error", "error[E0450]: not on Mondays"},
        Row{"segfault", "crashed in read, on rank "}, Row{"abort", "crashed in read, on rank "},
        Row{"exit", "error[E0424]: the plugin fixture_numbers 1.0.0"}}) {
    size_t turn = number++;
    for (const char* workers : {"0", "2"}) {
      if (!meshwright::sampled(turn++, 2)) continue;
      CAPTURE(row.fault);
      CAPTURE(workers);
      Program program;
      const Ended ended =
          program.run(arguments(2, {std::string("dataset.workers=") + workers}),
                      {{"FIXTURE_DATA", std::string(row.fault) + " in read of a rank"}});
      CAPTURE(ended.err);
      CHECK(ended.code == 2);
      // exit() in a thread takes down what the others still use, which may crash first.
      const bool crashed_in_exit = std::string(row.fault) == "exit" &&
                                   std::string(workers) == "2" &&
                                   ended.says("error[E0421]: the plugin fixture_numbers 1.0.0") &&
                                   ended.says("crashed in read, on rank ");
      CHECK((ended.says(row.says) || crashed_in_exit));
      CHECK(ended.says("plugin fixture_numbers 1.0.0 (" + kPlugin + ")"));
      CHECK(ended.says("read"));
      CHECK(ended.says(", on rank "));
      // Sample 20 is of the sixth step; a process that dies may take steps along.
      const bool dies = std::string(row.says).find("error[E0421]: ") != 0 &&
                        std::string(row.says).find("error[E0450]") != 0;
      if (!dies) CHECK(training_rows(program).size() == 5);
    }
  }
}

TEST_CASE("samples of other processes and a later run differ: they are told, not trained on") {
  Program program;
  Ended ended = program.run(arguments(2), {{"FIXTURE_DATA", "another fingerprint"}});
  CAPTURE(ended.err);
  check_ended(ended, 7,
              {"error[E0709]: the training data differ: their fingerprint is ", "dataset.plugin"});

  Program resumed;
  CHECK(resumed.run(arguments(1)).code == 0);
  ended =
      resumed.run(arguments(1, {"step_scheduler.max_steps=8", "dataset.fixture_numbers.step=4"}));
  CAPTURE(ended.err);
  check_ended(ended, 7,
              {"error[E0713]: ", "it was trained on other data than dataset.plugin now names: ",
               "dataset.fixture_numbers.step = 4 (was "});
  CHECK_FALSE(ended.says("max_steps = 8 (was "));
  ended = resumed.run(arguments(1, {"step_scheduler.max_steps=8"}));
  CHECK(ended.code == 0);
  CHECK(training_rows(resumed).size() == 8);
}

TEST_CASE("what a plugin's options or samples may not be is told before anything trains") {
  struct Row {
    Words sets;
    const char* fault;
    int code;
    Words says;
  };
  for (const Row& row : std::vector<Row>{
           {{"dataset.fixture_numbers.step=7"},
            "",
            2,
            {"E0204", "step = 7 is unlucky", "step = 8"}},
           {{"dataset.fixture_numbers.stop=7"}, "", 2, {"E0202", "step"}},
           {{"dataset.plugin=fixture_number"}, "", 2, {"E0401", "fixture_numbers"}},
           {{"dataset.packing=true", "dataset.document_end=3"}, "", 2, {"E0208", "packing"}},
           {{}, "bad token in read", 7, {"E0702", "sample 20, position 1: the token is 257"}}}) {
    CAPTURE(row.says[1]);
    Program program;
    const Ended ended = program.run(arguments(2, row.sets), {{"FIXTURE_DATA", row.fault}});
    CAPTURE(ended.err);
    CHECK(ended.code == row.code);
    for (const std::string& text : row.says) CHECK(ended.says(text));
    CHECK(!fs::exists(program.run_folder() / "checkpoints"));
  }
}

}  // namespace data_test
