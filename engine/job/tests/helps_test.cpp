// Help is tried before it is given.
#include "engine/job/before_start.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace helps_test {

namespace plan = meshwright::plan;
using meshwright::Error;
using meshwright::ErrorCode;

using Texts = std::vector<std::string>;

TEST_CASE("settings that help names are read as --set takes them") {
  struct Row {
    const char* help;
    Texts sets;
  };
  for (const Row& row :
       {Row{"set distributed.tp_size = 2", {"distributed.tp_size=2"}},
        Row{"set distributed.strategy = \"ddp\": 3.0 GiB a rank", {"distributed.strategy=\"ddp\""}},
        Row{"set distributed.tp_size = 1, distributed.cp_size = 1 and distributed.pp_size = 1",
            {"distributed.tp_size=1", "distributed.cp_size=1", "distributed.pp_size=1"}},
        Row{"set distributed.pipeline.layers_per_stage = 2: 4 stages",
            {"distributed.pipeline.layers_per_stage=2"}},
        Row{"leave out distributed.context.ring_size", {}}, Row{"use a world size of 8", {}}}) {
    CAPTURE(row.help);
    CHECK(plan::settings_in(row.help) == row.sets);
  }
  CHECK(plan::world_in("use a world size of 24") == 24);
  CHECK(!plan::world_in("use a world size of your own"));
  CHECK(!plan::world_in("set distributed.tp_size = 2"));
}

TEST_CASE("help that leads to no plan is left out, and other sizes stand in for it") {
  const Error said = Error(ErrorCode::world_not_divisible, "64 ranks are not divisible by tp 3")
                         .key("distributed.tp_size")
                         .about("distributed.pp_size")
                         .help("set distributed.tp_size = 4")
                         .help("set distributed.tp_size = 2")
                         .help("leave the others out")
                         .help("use a world size of 66")
                         .note("of 3 heads");
  meshwright::ParallelSizes sizes;
  sizes.tp = 3;
  // What is planned: these, and nothing else.
  auto helps = [&](const Texts& planned, size_t* tries = nullptr) {
    const Error out = plan::with_tried_help(said, sizes, 64, [&](const Texts& sets, int64_t world) {
      if (tries != nullptr) ++*tries;
      const std::string one = sets.empty() ? "world " + std::to_string(world) : sets.front();
      return std::find(planned.begin(), planned.end(), one) != planned.end();
    });
    CHECK(out.code() == said.code());
    CHECK(out.message() == said.message());
    CHECK(out.keys() == said.keys());
    CHECK(out.notes() == said.notes());
    return out.helps();
  };
  CHECK(helps({"distributed.tp_size=4", "distributed.tp_size=2", "world 66"}) == said.helps());
  CHECK(helps({"distributed.tp_size=2"}) ==
        Texts{"set distributed.tp_size = 2", "leave the others out"});
  CHECK(helps({"world 66"}) == Texts{"leave the others out", "use a world size of 66"});
  // Of the other divisors of 64 the near ones are tried.
  CHECK(
      helps({"distributed.tp_size=1", "distributed.tp_size=8"}) ==
      Texts{"set distributed.tp_size = 8", "set distributed.tp_size = 1", "leave the others out"});
  // Nothing helps by itself: then each is a step.
  size_t tries = 0;
  CHECK(helps({}, &tries) == said.helps());
  CHECK(tries <= 3 + 8);
}

TEST_CASE("an error about no size gets no size for help") {
  const Error said = Error(ErrorCode::batch_not_divisible, "64 is no multiple of 3")
                         .key("step_scheduler.global_batch_size")
                         .help("set step_scheduler.global_batch_size = 63");
  CHECK(plan::with_tried_help(said, {}, 8, [](const Texts&, int64_t) { return false; }).helps() ==
        said.helps());
}

}  // namespace helps_test
