// What a process inherits from who started it: limits and the current folder. What is short is
// called by its name, and nothing ends by a signal.
#include <doctest/doctest.h>

#include "program.h"

using namespace faults;

namespace {

// The next starts are made by a shell that does `before` first.
void start_after(Program& program, const std::string& before) {
  program.launcher({"/bin/sh", "-c", before + " && exec \"$@\"", "sh"});
}

}  // namespace

// gloo's own thread meets the limit in one of these, the dynamic linker, a file or a socket of ours
// in others.
TEST_CASE("too few descriptors are told as such, wherever they end") {
  int met = 0;
  for (const auto& [limit, ranks] :
       {std::pair(8, 1), std::pair(10, 1), std::pair(12, 1), std::pair(24, 2)}) {
    CAPTURE(limit);
    Program program;
    start_after(program, "ulimit -n " + std::to_string(limit));
    program.start(ranks == 1 ? Words{"--set", "step_scheduler.max_steps=2"}
                             : Words{"--nproc", "2", "--set", "step_scheduler.max_steps=2"});
    const Ended ended = program.reap();
    CAPTURE(ended.err);
    if (ended.code == 0) continue;
    ++met;
    CHECK(ended.code == 4);
    CHECK((ended.says("error[E0508]: ") || ended.says("error[E0505]: cannot make a pipe")));
    CHECK((ended.says("(RLIMIT_NOFILE)") || ended.says("ulimit -n")));
    CHECK(!ended.says("terminate called"));
  }
  CHECK(met >= 2);
}

TEST_CASE("memory that does not suffice for LibTorch is told as such") {
  for (int kilobytes : {60000, 200000, 380000, 420000, 460000}) {
    CAPTURE(kilobytes);
    Program program;
    start_after(program, "ulimit -v " + std::to_string(kilobytes));
    const Ended ended = program.run({"--set", "step_scheduler.max_steps=2"});
    check_ended(ended, 4, {"error[E0508]: ", "ulimit -v"});
  }
}

TEST_CASE("a file beyond RLIMIT_FSIZE is a failed save, as checkpoint.on_failure says") {
  Program program;
  start_after(program, "ulimit -f 24");
  const Ended ended =
      program.run({"--set", "step_scheduler.max_steps=2", "--set", "checkpoint.every_steps=1",
                   "--set", "checkpoint.on_failure=continue"});
  CAPTURE(ended.err);
  CHECK(ended.code == 7);  // the last one may not fail
  CHECK(ended.out.find("the run goes on (checkpoint.on_failure)") != std::string::npos);
  CHECK(ended.says("error[E0705]: "));
  CHECK(
      ended.says("File too large (EFBIG): this process may write files of at most 12288 bytes "
                 "(RLIMIT_FSIZE)"));
  CHECK(ended.says("ulimit -f unlimited"));
}

TEST_CASE("a current folder that is gone is told, and put down to no plugin") {
  Program program;
  const std::string gone = (program.folder() / "gone").string();
  start_after(program, "mkdir " + gone + " && cd " + gone + " && rmdir " + gone);
  const Ended ended = program.run({});
  check_ended(ended, 2, {"error[E0209]: the current folder is gone"}, {"plugin"});
}
