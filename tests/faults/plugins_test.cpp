// A plugin that ends the process, or lets replicas drift apart: no run looks done, and nothing
// wrong is saved.
#include <doctest/doctest.h>

#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "program.h"
#include "sdk/comm/tests/sampled.h"

using namespace faults;
namespace fs = std::filesystem;

namespace {

const std::string kPlugin =
    MESHWRIGHT_BUILD_DIR "/fixtures/plugins/libmeshwright_fixture_misbehaves.so";

std::vector<std::string> arguments(int64_t ranks, const std::vector<std::string>& sets = {}) {
  std::vector<std::string> out{"--nproc", std::to_string(ranks)};
  for (const std::string& set :
       {"plugins.load=[\"" + kPlugin + "\"]",
        std::string("distributed.strategy=fixture_misbehaves"),
        std::string("step_scheduler.max_steps=6"), std::string("dist_env.timeout_minutes=1")})
    out.insert(out.end(), {"--set", set});
  for (const std::string& set : sets) out.insert(out.end(), {"--set", set});
  return out;
}

}  // namespace

TEST_CASE("the plugin of these tests trains when nothing is asked of it") {
  Program program;
  Ended ended = program.run(arguments(2));
  CAPTURE(ended.err);
  CHECK(ended.code == 0);
  CHECK(fs::exists(program.run_folder() / "checkpoints/step_00000006"));
}

TEST_CASE(
    "a plugin that calls exit(0) in any phase fails the run, by name, alone and with local ranks" *
    doctest::test_suite("whole")) {
  size_t number = 0;  // half: each alone or with ranks, in turns
  for (const char* what : {"exit in create", "exit in plan", "exit in parallelize", "exit in step",
                           "quick_exit in step", "_exit in step"}) {
    size_t turn = number++;
    for (int64_t ranks : {1, 2}) {
      if (!meshwright::sampled(turn++, 2)) continue;
      CAPTURE(what);
      CAPTURE(ranks);
      if (std::string(what).starts_with("_") && ranks == 1)
        continue;  // nothing in the process can notice it
      Program program;
      Ended ended = program.run(arguments(ranks), {{"FIXTURE_MISBEHAVES", what}});
      CAPTURE(ended.err);
      CHECK(ended.code == 2);
      CHECK(ended.says("error[E0424]: "));
      CHECK(ended.says(kPlugin));
      CHECK(!fs::exists(program.run_folder() / "checkpoints/step_00000006"));
    }
  }
}

TEST_CASE(
    "what leaves a plugin that is not an Error is told as its fault, with version, method and "
    "rank, and not tried again" *
    doctest::test_suite("whole")) {
  struct Row {
    const char *fault, *place, *says, *method;
  };
  for (const Row& row :
       {Row{"throw", "validate", "std::runtime_error left the plugin: made of glass", "validate"},
        Row{"throw", "plan", "std::runtime_error left the plugin: made of glass", "plan_mesh"},
        Row{"throw 42", "plan_sharding", "of type int, left the plugin", "plan_sharding"},
        Row{"throw", "parallelize", "std::runtime_error left the plugin", "parallelize"},
        Row{"throw", "begin_step", "std::runtime_error left the plugin: made of glass",
            "begin_step"},
        Row{"throw 42", "step", "of type int, left the plugin", "end_step"},
        Row{"LibTorch", "clip_grad_norm", "of type c10::Error left the plugin: The size of tensor",
            "clip_grad_norm"},
        Row{"throw", "data_group", "std::runtime_error left the plugin", "data_group"},
        Row{"throw 42", "parameters", "of type int, left the plugin", "parameters"}}) {
    CAPTURE(row.fault);
    CAPTURE(row.place);
    std::vector<std::string> with = arguments(2);
    with.insert(with.end(), {"--max-restarts", "2"});
    Program program;
    Ended ended =
        program.run(with, {{"FIXTURE_MISBEHAVES", std::string(row.fault) + " in " + row.place}});
    CAPTURE(ended.err);
    CHECK(ended.code == 2);
    CHECK(ended.says("error[E0421]: "));
    CHECK(ended.says(row.says));
    CHECK(ended.says("plugin fixture_misbehaves 1.0.0 (" + kPlugin + "), in " + row.method));
    CHECK(!ended.says("E0901"));
    CHECK(!ended.says("restart 1"));
    if (std::string(row.method).find("_step") != std::string::npos) CHECK(ended.says(", on rank "));
  }
}

TEST_CASE(
    "what a hook throws that a plugin left in a module is told, and which plugin may be at fault" *
    doctest::test_suite("whole")) {
  struct Row {
    const char *fault, *place, *says;
  };
  for (const Row& row :
       {Row{"throw", "forward", "error[E0901]: made of glass"},
        Row{"LibTorch", "forward", "error[E0901]: The size of tensor"},
        Row{"throw", "backward", "error[E0901]: made of glass"},
        Row{"throw 42", "forward",
            "error[E0901]: something that is no exception, of type int, was thrown"}}) {
    CAPTURE(row.fault);
    CAPTURE(row.place);
    Program program;
    Ended ended = program.run(
        arguments(2), {{"FIXTURE_MISBEHAVES", std::string(row.fault) + " in " + row.place}});
    CAPTURE(ended.err);
    CHECK(ended.code == 1);
    CHECK(ended.says(row.says));
    CHECK(ended.says("or a defect of the plugin fixture_misbehaves 1.0.0 (" + kPlugin + ")"));
  }
}

TEST_CASE("a plugin's own errors, and those of memory, keep their codes") {
  struct Row {
    const char* fault;
    int code;
    const char* says;
  };
  for (const Row& row : {Row{"own error", 2, "error[E0450]: not on Mondays"},
                         Row{"out of memory", 4, "error[E0508]: "}}) {
    CAPTURE(row.fault);
    Program program;
    Ended ended =
        program.run(arguments(2), {{"FIXTURE_MISBEHAVES", std::string(row.fault) + " in step"}});
    CAPTURE(ended.err);
    CHECK(ended.code == row.code);
    CHECK(ended.says(row.says));
    CHECK(!ended.says("E0421"));
  }
}

TEST_CASE("a crash of a plugin is told as its fault, alone and with ranks, and not tried again" *
          doctest::test_suite("whole")) {
  struct Row {
    const char *fault, *place, *says, *where;
  };
  size_t number = 0;  // half: each alone or with ranks, in turns
  for (const Row& row :
       {Row{"segfault", "plan", "signal 11 (SIGSEGV", "plan_mesh"},
        Row{"segfault", "begin_micro_batch", "signal 11 (SIGSEGV", "begin_micro_batch"},
        Row{"abort", "step", "signal 6 (SIGABRT", "end_step"},
        Row{"two crashes", "begin_step", "signal 4 (SIGILL", "code that it left behind"},
        Row{"trap", "after_optimizer_step", "signal 4 (SIGILL", "after_optimizer_step"},
        Row{"abort", "values_written", "signal 6 (SIGABRT", "values_written"},
        Row{"segfault", "before_save", "signal 11 (SIGSEGV", "before_save"},
        Row{"abort", "state_tensors", "signal 6 (SIGABRT", "state_tensors"},
        Row{"divide", "create", "signal 8 (SIGFPE", "create"},
        Row{"overflow", "clip_grad_norm", "signal 11 (SIGSEGV", "clip_grad_norm"},
        Row{"segfault", "forward", "signal 11 (SIGSEGV", "code that it left behind"},
        Row{"abort", "destructor", "signal 6 (SIGABRT", "the destructor of its model"}}) {
    size_t turn = number++;
    for (int64_t ranks : {1, 2}) {
      if (!meshwright::sampled(turn++, 2)) continue;
      CAPTURE(row.fault);
      CAPTURE(row.place);
      CAPTURE(ranks);
      std::vector<std::string> with = arguments(ranks);
      if (ranks > 1) with.insert(with.end(), {"--max-restarts", "2"});
      Program program;
      Ended ended =
          program.run(with, {{"FIXTURE_MISBEHAVES", std::string(row.fault) + " in " + row.place}});
      CAPTURE(ended.err);
      CHECK(ended.code == 2);
      CHECK(ended.says("error[E0421]: the plugin fixture_misbehaves 1.0.0 (" + kPlugin +
                       ") crashed in " + row.where));
      CHECK(ended.says(row.says));
      CHECK(!ended.says("restart 1"));
    }
  }
}

TEST_CASE("an exception that nothing catches in a thread of a plugin's is told with its words") {
  Program program;
  Ended ended = program.run(arguments(2), {{"FIXTURE_MISBEHAVES", "terminate in step"}});
  CAPTURE(ended.err);
  CHECK(ended.code == 128 + SIGABRT);
  CHECK(ended.says("what():  made of glass"));
  CHECK(ended.says("was ended by signal 6 (SIGABRT)"));
}

TEST_CASE("a plugin that leaves by _exit(1) is told of, and not tried again") {
  std::vector<std::string> with = arguments(2);
  with.insert(with.end(), {"--max-restarts", "2"});
  Program program;
  Ended ended = program.run(with, {{"FIXTURE_MISBEHAVES", "_exit 1 in step"}});
  CAPTURE(ended.err);
  CHECK(ended.code == 2);
  CHECK(ended.says("error[E0424]: rank "));
  CHECK(ended.says("ended with exit status 1 and without a word"));
  CHECK(ended.says("the plugin fixture_misbehaves 1.0.0 (" + kPlugin + ")"));
  CHECK(!ended.says("restart 1"));
}

TEST_CASE("a strategy whose parts are no views of what the optimizer updates is refused") {
  Program program;
  Ended ended = program.run(arguments(2), {{"FIXTURE_MISBEHAVES", "own parts"}});
  CAPTURE(ended.err);
  CHECK(ended.code == 2);
  CHECK(ended.says("error[E0423]: the strategy fixture_misbehaves trains model."));
  CHECK(ended.says("no view of any of update_groups()"));
}

TEST_CASE(
    "a strategy whose parts are not what it says of them is refused before anything is read into "
    "them") {
  Program program;
  Ended ended = program.run(arguments(2), {{"FIXTURE_MISBEHAVES", "wrong region"}});
  CAPTURE(ended.err);
  CHECK(ended.code == 2);
  CHECK(ended.says("error[E0423]: the strategy fixture_misbehaves says that model."));
  CHECK(ended.says("but its part has the shape [1, "));
  CHECK(ended.says("ParallelParameter::region"));
}

TEST_CASE("state that is not what the strategy says of it is refused before it trains") {
  struct Row {
    const char *fault, *says;
  };
  for (const Row& row : {Row{"taken state", "not one that the engine uses itself"},
                         Row{"short state", "is not a contiguous tensor of float32 in the shape"},
                         Row{"state outside", "is no part of the shape [1]"}}) {
    CAPTURE(row.fault);
    Program program;
    Ended ended = program.run(arguments(2), {{"FIXTURE_MISBEHAVES", row.fault}});
    CAPTURE(ended.err);
    CHECK(ended.code == 2);
    CHECK(ended.says("error[E0423]: the strategy fixture_misbehaves keeps the state "));
    CHECK(ended.says(row.says));
  }
}

TEST_CASE("replicas that drift apart are never saved: strategy, parameter and rank are named" *
          doctest::test_suite("whole")) {
  // Of runs that stop at it, beside training and before it:
  // engine/train/run/tests/checkpointing_test.cpp.
  for (const auto& [background, on_failure] : {std::pair{"false", "continue"}, {"true", "stop"}}) {
    CAPTURE(background);
    CAPTURE(on_failure);
    Program program;
    Ended ended = program.run(
        arguments(3, {std::string("checkpoint.async=") + background, "checkpoint.every_steps=2",
                      std::string("checkpoint.on_failure=") + on_failure}),
        {{"FIXTURE_MISBEHAVES", "drift"}});
    CAPTURE(ended.out);
    CAPTURE(ended.err);
    CHECK(ended.code == 7);
    CHECK(ended.says("error[E0714]: rank 1 holds other values of "));
    CHECK(ended.says("than ranks 0, 2"));
    CHECK(ended.says("copies of each other in the layout of fixture_misbehaves"));
    // Also when the run is to live with saves that fail: there is no use in training such
    // replicas on, and room is not what is missing.
    CHECK(ended.out.find("the run goes on") == std::string::npos);
    CHECK(!ended.says("make room"));
    CHECK(!ended.says("on_failure"));
    if (fs::exists(program.run_folder() / "checkpoints"))
      CHECK(fs::is_empty(program.run_folder() / "checkpoints"));
  }
}

TEST_CASE(
    "a plugin that [plugins] load names brings its tensor-parallel plans for every strategy, and "
    "one that hides a bundled strategy is told of") {
  Program program;
  const std::string plans =
      MESHWRIGHT_BUILD_DIR "/fixtures/plugins/libmeshwright_fixture_tp_plan.so";
  Ended ended = program.run({"--nproc", "2", "--set", "plugins.load=[\"" + plans + "\"]", "--set",
                             "distributed.strategy=fsdp2", "--set", "distributed.tp_size=2",
                             "--set", "distributed.tp_plan=fixture_mlp_and_head", "--set",
                             "step_scheduler.max_steps=2"});
  CAPTURE(ended.err);
  CHECK(ended.code == 0);
  CHECK(!ended.says("it hides"));

  const std::string name = "libmeshwright_fsdp2.so";
  const fs::path mine = program.folder() / name;
  fs::copy_file(fs::path(MESHWRIGHT_BUILD_DIR) / "lib/meshwright/plugins" / name, mine);
  Program other;
  ended =
      other.run({"--nproc", "2", "--set", "plugins.path=[\"" + program.folder().string() + "\"]",
                 "--set", "distributed.strategy=fsdp2", "--set", "step_scheduler.max_steps=2"});
  CAPTURE(ended.err);
  CHECK(ended.code == 0);
  CHECK(ended.says("warning: the strategy fsdp2 is that of fsdp2 "));
  CHECK(ended.says(mine.string()));
  CHECK(ended.says("it hides the one of " MESHWRIGHT_BUILD_DIR "/lib/meshwright/plugins/" + name));
}
