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

Words arguments(int64_t ranks, const Words& sets = {}) {
  return job_words(ranks,
                   {"plugins.load=[\"" + kPlugin + "\"]", "distributed.strategy=fixture_misbehaves",
                    "step_scheduler.max_steps=6", "dist_env.timeout_minutes=1"},
                   sets);
}

// What is said to have happened in the plugin.
const std::string kNamed = "plugin fixture_misbehaves 1.0.0 (" + kPlugin + ")";

struct Fault {
  std::string what;  // FIXTURE_MISBEHAVES
  int code;
  Words says, never = {};
};
void check_fault(const Fault& fault, int64_t ranks = 2) {
  CAPTURE(fault.what);
  CAPTURE(ranks);
  Words words = arguments(ranks);
  const bool again = ranks > 1 && fault.code == 2;  // would be tried
  if (again) words.insert(words.end(), {"--max-restarts", "2"});
  Program program;
  const Ended ended = program.run(words, {{"FIXTURE_MISBEHAVES", fault.what}});
  check_ended(ended, fault.code, fault.says, fault.never);
  CHECK(!ended.says("restart 1"));
  // What aborts in the end has saved.
  if (fault.code == 0 || fault.what.find("exit") != std::string::npos)
    CHECK(fs::exists(program.run_folder() / "checkpoints/step_00000006") == (fault.code == 0));
}
// Half: each alone or with ranks, in turns.
void check_faults(const std::vector<Fault>& faults) {
  for (size_t i = 0; i < faults.size(); ++i)
    for (int64_t ranks : {1, 2})
      if (meshwright::sampled(i + static_cast<size_t>(ranks) - 1, 2)) check_fault(faults[i], ranks);
}

}  // namespace

TEST_CASE("what a strategy may not do is refused before it trains, or told with its own words") {
  const std::string trains = "error[E0423]: the strategy fixture_misbehaves trains model.",
                    says = "error[E0423]: the strategy fixture_misbehaves says that model.",
                    keeps = "error[E0423]: the strategy fixture_misbehaves keeps the state ";
  for (const Fault& fault : {
           Fault{"nothing", 0, {}},
           // A plugin's own errors, and those of memory, keep their codes.
           {"own error in step", 2, {"error[E0450]: not on Mondays"}, {"E0421"}},
           {"out of memory in step", 4, {"error[E0508]: "}, {"E0421"}},
           {"_exit 1 in step",
            2,
            {"error[E0424]: rank ", "ended with exit status 1 and without a word", kNamed}},
           {"own parts", 2, {trains, "no view of any of update_groups()"}},
           {"wrong region",
            2,
            {says, "but its part has the shape [1, ", "ParallelParameter::region"}},
           {"taken state", 2, {keeps, "not one that the engine uses itself"}},
           {"short state", 2, {keeps, "is not a contiguous tensor of float32 in the shape"}},
           {"state outside", 2, {keeps, "is no part of the shape [1]"}},
       })
    check_fault(fault);
}

TEST_CASE("an exception that nothing catches in a thread of a plugin's is told with its words") {
  Program program;
  const Ended ended = program.run(arguments(2), {{"FIXTURE_MISBEHAVES", "terminate in step"}});
  check_ended(ended, 128 + SIGABRT, {"what():  made of glass", "was ended by signal 6 (SIGABRT)"});
}

TEST_CASE(
    "a plugin that calls exit(0) in any phase fails the run, by name, alone and with local ranks" *
    doctest::test_suite("whole")) {
  std::vector<Fault> faults;
  for (const char* what : {"exit in create", "exit in plan", "exit in parallelize", "exit in step",
                           "quick_exit in step"})
    faults.push_back({what, 2, {"error[E0424]: ", kPlugin}});
  check_faults(faults);
  // Alone nothing in the process can notice it.
  check_fault({"_exit in step", 2, {"error[E0424]: ", kPlugin}});
}

TEST_CASE(
    "what leaves a plugin that is not an Error is told as its fault, with version, method and "
    "rank, and not tried again" *
    doctest::test_suite("whole")) {
  struct Row {
    std::string what, says, method;
  };
  const std::string left = "std::runtime_error left the plugin", glass = left + ": made of glass",
                    number = "of type int, left the plugin";
  for (const Row& row :
       {Row{"throw in validate", glass, "validate"}, Row{"throw in plan", glass, "plan_mesh"},
        Row{"throw 42 in plan_sharding", number, "plan_sharding"},
        Row{"throw in parallelize", left, "parallelize"},
        Row{"throw in begin_step", glass, "begin_step"},
        Row{"throw 42 in step", number, "end_step"},
        Row{"LibTorch in clip_grad_norm", "of type c10::Error left the plugin: The size of tensor",
            "clip_grad_norm"},
        Row{"throw in data_group", left, "data_group"},
        Row{"throw 42 in parameters", number, "parameters"}}) {
    Words says{"error[E0421]: ", row.says, kNamed + ", in " + row.method};
    if (row.method.find("_step") != std::string::npos) says.emplace_back(", on rank ");
    check_fault({row.what, 2, says, {"E0901"}});
  }
}

TEST_CASE(
    "what a hook throws that a plugin left in a module is told, and which plugin may be at fault" *
    doctest::test_suite("whole")) {
  const std::string at_fault = "or a defect of the " + kNamed;
  for (const Fault& fault :
       {Fault{"throw in forward", 1, {"error[E0901]: made of glass", at_fault}},
        {"LibTorch in forward", 1, {"error[E0901]: The size of tensor", at_fault}},
        {"throw in backward", 1, {"error[E0901]: made of glass", at_fault}},
        {"throw 42 in forward",
         1,
         {"error[E0901]: something that is no exception, of type int, was thrown", at_fault}}})
    check_fault(fault);
}

TEST_CASE("a crash of a plugin is told as its fault, alone and with ranks, and not tried again" *
          doctest::test_suite("whole")) {
  struct Row {
    const char *what, *says, *where;
  };
  std::vector<Fault> faults;
  for (const Row& row :
       {Row{"segfault in plan", "signal 11 (SIGSEGV", "plan_mesh"},
        Row{"segfault in begin_micro_batch", "signal 11 (SIGSEGV", "begin_micro_batch"},
        Row{"abort in step", "signal 6 (SIGABRT", "end_step"},
        Row{"two crashes in begin_step", "signal 4 (SIGILL", "code that it left behind"},
        Row{"trap in after_optimizer_step", "signal 4 (SIGILL", "after_optimizer_step"},
        Row{"abort in values_written", "signal 6 (SIGABRT", "values_written"},
        Row{"segfault in before_save", "signal 11 (SIGSEGV", "before_save"},
        Row{"abort in state_tensors", "signal 6 (SIGABRT", "state_tensors"},
        Row{"divide in create", "signal 8 (SIGFPE", "create"},
        Row{"overflow in clip_grad_norm", "signal 11 (SIGSEGV", "clip_grad_norm"},
        Row{"segfault in forward", "signal 11 (SIGSEGV", "code that it left behind"},
        Row{"abort in destructor", "signal 6 (SIGABRT", "the destructor of its model"}})
    faults.push_back(
        {row.what, 2, {"error[E0421]: the " + kNamed + " crashed in " + row.where, row.says}});
  check_faults(faults);
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
    check_ended(ended, 7,
                {"error[E0714]: rank 1 holds other values of ", "than ranks 0, 2",
                 "copies of each other in the layout of fixture_misbehaves"});
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
  Ended ended = program.run(job_words(
      2, {"plugins.load=[\"" + plans + "\"]", "distributed.strategy=fsdp2", "distributed.tp_size=2",
          "distributed.tp_plan=fixture_mlp_and_head", "step_scheduler.max_steps=2"}));
  CAPTURE(ended.err);
  check_ended(ended, 0, {}, {"it hides"});

  const std::string name = "libmeshwright_fsdp2.so";
  const fs::path mine = program.folder() / name;
  fs::copy_file(fs::path(MESHWRIGHT_BUILD_DIR) / "lib/meshwright/plugins" / name, mine);
  Program other;
  ended = other.run(job_words(2, {"plugins.path=[\"" + program.folder().string() + "\"]",
                                  "distributed.strategy=fsdp2", "step_scheduler.max_steps=2"}));
  check_ended(ended, 0,
              {"warning: the strategy fsdp2 is that of fsdp2 ", mine.string(),
               "it hides the one of " MESHWRIGHT_BUILD_DIR "/lib/meshwright/plugins/" + name});
}
