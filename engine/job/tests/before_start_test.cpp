// What is said before a rank starts: schedules that do not do what they say, samples behind the
// last position, memory that is not there, worlds beyond all limits; and help that was tried.
#include "engine/job/before_start.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "engine/job/tests/configured.h"
#include "engine/models/decoder_family.h"
#include "engine/models/models.h"

namespace plan = meshwright::plan;
namespace fs = std::filesystem;
using meshwright::Bytes;
using meshwright::Diagnostics;
using meshwright::Error;
using meshwright::ErrorCode;

namespace {

struct Folder {
  fs::path path =
      fs::temp_directory_path() / ("meshwright_before_start_" + std::to_string(::getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  std::string put(const std::string& name, const std::string& text) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name) << text;
    return (path / name).string();
  }
};

constexpr int64_t kGiB = int64_t{1} << 30;

using Texts = std::vector<std::string>;

std::optional<Error> refused(const Texts& sets, std::optional<int64_t> world) {
  try {
    plan::check_rank_limits(plan::job_with(sets), world);
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

}  // namespace

TEST_CASE("a schedule that cannot do what it says is told before the start") {
  struct Row {
    std::vector<std::string> sets;
    std::string warning, notice;
  };
  for (const Row& row : std::vector<Row>{
           {{}, "", ""},
           {{"optimizer.lr=1e-5"}, "", ""},  // min_lr is 0 unless somebody sets it
           {{"lr_scheduler.min_lr=3e-4"}, "never changes", ""},
           {{"lr_scheduler.min_lr=3e-4", "lr_scheduler.lr_decay_style=wsd"}, "\"wsd\"", ""},
           {{"lr_scheduler.min_lr=3e-4", "lr_scheduler.lr_decay_style=constant"}, "", ""},
           {{"optimizer.lr=0"}, "no step changes a weight", ""},
           {{"step_scheduler.max_steps=20"}, "", ""},
           {{"step_scheduler.max_steps=19"},
            "",
            "ends at 0.000285 and never reaches optimizer.lr = 3e-04"},
           {{"step_scheduler.max_steps=0"}, "", ""},
           {{"step_scheduler.max_steps=10", "lr_scheduler.lr_warmup_steps=40"},
            "lr_warmup_steps = 40 is longer than the run",
            ""}}) {
    plan::JobPlan out;
    plan::warn_of_schedule(plan::job_with(row.sets), out);
    INFO((row.sets.empty() ? "defaults" : row.sets[0]));
    REQUIRE(out.warnings.size() == (row.warning.empty() ? 0 : 1));
    REQUIRE(out.notices.size() == (row.notice.empty() ? 0 : 1));
    if (!row.warning.empty()) CHECK(out.warnings[0].find(row.warning) != std::string::npos);
    if (!row.notice.empty()) CHECK(out.notices[0].find(row.notice) != std::string::npos);
  }
}

TEST_CASE("samples longer than the model's positions are told, stretched positions count") {
  Folder folder;
  std::string plain = folder.put("plain/config.json", R"({"max_position_embeddings": 4096})"),
              yarn = folder.put("yarn/config.json",
                                R"({"max_position_embeddings": 4096, "rope_scaling":
                         {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}})"),
              none = folder.put("none/config.json", "{}"),
              nested = folder.put("nested/config.json",
                                  R"({"text_config": {"max_position_embeddings": 128}})");
  auto warnings = [](const std::string& model, const std::vector<std::string>& sets) {
    plan::JobPlan out;
    meshwright::ModelOutline outline;
    outline.max_positions =
        meshwright::outlines::stated_positions(meshwright::outlines::load_config(model));
    plan::check_positions(plan::job_with(sets), outline, model, out);
    return out.warnings;
  };
  CHECK(warnings(plain, {"dataset.seq_len=4096"}).empty());
  std::vector<std::string> said =
      warnings(plain, {"dataset.seq_len=4097", "validation_dataset.seq_len=8192"});
  REQUIRE(said.size() == 2);
  CHECK(said[0].find("dataset.seq_len = 4097 is above max_position_embeddings = 4096 of " +
                     plain) == 0);
  CHECK(said[1].find("validation_dataset.seq_len = 8192") == 0);
  CHECK(warnings(yarn, {"dataset.seq_len=16384"}).empty());
  CHECK(warnings(yarn, {"dataset.seq_len=16385"}).size() == 1);
  CHECK(warnings(none, {"dataset.seq_len=100000"}).empty());
  CHECK(warnings(nested, {"dataset.path=x"}).size() == 1);  // 512 by default
  CHECK(warnings(nested, {}).empty());                      // nothing is read
}

TEST_CASE(
    "samples longer than positions that have weights are an error with the length that fits") {
  meshwright::ModelOutline outline;
  outline.max_positions = 64;
  outline.positions_end = true;
  plan::JobPlan out;
  plan::check_positions(plan::job_with({"dataset.kind=mock", "dataset.seq_len=64"}), outline, "it",
                        out);
  try {
    plan::check_positions(plan::job_with({"dataset.kind=mock", "dataset.seq_len=65"}), outline,
                          "it", out);
    FAIL("a sample of 65 positions was taken");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::model_does_not_fit);
    REQUIRE(error.helps().size() == 1);
    CHECK(error.helps()[0] == "set dataset.seq_len = 64");
  }
}

TEST_CASE(
    "the memory of a host is that of the machine, or the smallest limit of the cgroups that hold "
    "the process") {
  Folder folder;
  const std::string info =
      "MemTotal:       4194304 kB\nMemFree:  1 kB\nSwapTotal:      1048576 kB\n";
  CHECK(plan::host_memory(folder.path).bytes == 0);
  folder.put("proc/meminfo", info);
  CHECK(plan::host_memory(folder.path).bytes == 5 * kGiB);
  CHECK(plan::host_memory(folder.path).limit == "this machine has");
  SUBCASE("version 2, a limit of the group above") {
    folder.put("proc/self/cgroup", "0::/slurm/job_7/step_0\n");
    folder.put("sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max\n");
    folder.put("sys/fs/cgroup/slurm/job_7/memory.max", std::to_string(2 * kGiB) + "\n");
    folder.put("sys/fs/cgroup/slurm/memory.max", std::to_string(3 * kGiB) + "\n");
    CHECK(plan::host_memory(folder.path).bytes == 2 * kGiB);
    CHECK(plan::host_memory(folder.path).limit == "the memory cgroup of this process allows");
  }
  SUBCASE("version 1 in a container, which sees its group as the root") {
    folder.put("proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n");
    folder.put("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(kGiB) + "\n");
    CHECK(plan::host_memory(folder.path).bytes == kGiB);
  }
  SUBCASE("no limit, in the words of both versions") {
    folder.put("proc/self/cgroup", "4:memory:/a\n0::/a\n");
    folder.put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
    folder.put("sys/fs/cgroup/a/memory.max", "max\n");
    CHECK(plan::host_memory(folder.path).bytes == 5 * kGiB);
  }
}

TEST_CASE("ranks that do not fit into a host by themselves are refused with how many do") {
  const plan::HostMemory memory{kGiB, "this machine has"};
  plan::check_room_of_ranks(5, memory, "--nproc");                 // of 200 MiB
  plan::check_room_of_ranks(1024, {0, ""}, "--nproc");             // nobody knows
  plan::check_room_of_ranks(1, {kGiB / 64, "it has"}, "--nproc");  // this process is one
  try {
    plan::check_room_of_ranks(6, memory, "--nproc");
    FAIL("6 ranks were taken");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::memory_exceeded);
    CHECK(error.key() == "--nproc");
    CHECK(error.helps() == std::vector<std::string>{"--nproc 5"});
  }
}

TEST_CASE(
    "a job that keeps more than the host has is refused with what fits, a near one is warned, "
    "others pass in silence") {
  plan::JobPlan p;
  p.world_size = 4;
  p.footprint.emplace();
  p.footprint->bytes = {kGiB, kGiB, 2 * kGiB, kGiB,
                        kGiB};  // kept 4 and the process, at the peak 2 more
  auto judge = [&](int64_t ranks, int64_t bytes, const plan::Replan& replan) {
    Diagnostics out;
    plan::check_memory(p, ranks, {bytes, "this machine has"}, {"other", "third"}, replan, out);
    return out;
  };
  plan::Replan never = [](const std::vector<std::string>&, int64_t) {
    return std::optional<Bytes>();
  };
  CHECK((judge(4, 64 * kGiB, never).ok() && judge(4, 64 * kGiB, never).warnings().empty()));
  CHECK((judge(4, 0, never).ok() && judge(4, 0, never).warnings().empty()));  // not known
  Diagnostics near = judge(4, 20 * kGiB, never);
  CHECK(near.ok());
  REQUIRE(near.warnings().size() == 1);
  CHECK(near.warnings()[0].find("the 4 ranks of this host may need 24.8 GiB") == 0);
  CHECK(near.warnings()[0].find("1.0 GiB of activations") != std::string::npos);
  Diagnostics far = judge(4, 8 * kGiB, never);
  REQUIRE(far.errors().size() == 1);
  CHECK(far.errors()[0].code() == ErrorCode::memory_exceeded);
  CHECK(far.errors()[0].message() ==
        "the 4 ranks of this host would keep 16.8 GiB (each 1.0 GiB of weights, 1.0 GiB of "
        "gradients, 2.0 GiB of optimizer state and "
        "200.0 MiB for the process itself), but this machine has 8.0 GiB");
  CHECK(far.errors()[0].helps().size() == 1);

  // Whoever shards divides by the world; one strategy shards, the other does not; half the width
  // halves all.
  plan::Replan known = [](const std::vector<std::string>& sets,
                          int64_t world) -> std::optional<Bytes> {
    int64_t whole = 4 * kGiB;
    if (!sets.empty() && sets[0] == "distributed.strategy=third")
      return Bytes{whole / world / 4, 0, 0, 0, 0};
    if (!sets.empty() && sets[0] == "model.torch_dtype=bfloat16")
      return Bytes{whole / 2, 0, 0, 0, 0};
    if (!sets.empty()) return std::nullopt;
    return Bytes{world > 4 ? whole * 4 / world : whole, 0, 0, 0, 0};
  };
  std::vector<std::string> helps = judge(4, 8 * kGiB, known).errors()[0].helps();
  REQUIRE(helps.size() == 3);
  CHECK(helps[0] == "set distributed.strategy = \"third\": 456.0 MiB a rank");
  CHECK(helps[1] == "start it with 1 rank: 4.2 GiB a rank");
  CHECK(helps[2] == "start it on 4 times as many hosts like this one (16 ranks): 1.2 GiB a rank");
  CHECK(judge(4, 10 * kGiB, known).errors()[0].helps()[1] ==
        "set model.torch_dtype = \"bfloat16\": 2.2 GiB a rank");
}

TEST_CASE("sizes up to the largest plannable world pass") {
  const std::string most = std::to_string(plan::kMostRanks);
  for (const Texts& sets : {Texts{},
                            {"distributed.tp_size=8", "distributed.pp_size=16",
                             "distributed.cp_size=2", "distributed.dp_replicate_size=8"},
                            {"distributed.tp_size=" + most},
                            {"distributed.dp_size=" + most, "distributed.dp_replicate_size=2"},
                            {"distributed.ep_size=" + most},
                            {"distributed.tp_size=0", "distributed.pp_size=-1"}}) {
    CHECK(!refused(sets, plan::kMostRanks));
    CHECK(!refused(sets, std::nullopt));
  }
}

TEST_CASE(
    "sizes whose product leaves the plannable worlds are refused before anything multiplies them") {
  const std::string huge = "9000000000000000000";
  struct Case {
    ErrorCode code;
    std::string key;
    std::optional<int64_t> world;
    std::string size = {}, more = {};  // what the key is set to
  };
  using enum ErrorCode;
  for (const Case& c :
       {Case{out_of_range, "", plan::kMostRanks + 1},
        {out_of_range, "", INT64_MAX},
        {world_not_divisible, "distributed.tp_size", 8, huge},
        {world_not_divisible, "distributed.tp_size", 8, huge, "distributed.pp_size=" + huge},
        {world_not_divisible, "distributed.cp_size", std::nullopt, "3000000",
         "distributed.pp_size=2"},
        {world_mismatch, "distributed.dp_size", 8, huge},
        {world_not_divisible, "distributed.dp_replicate_size", std::nullopt, huge},
        {ep_not_divisor, "distributed.ep_size", std::nullopt, huge}}) {
    CAPTURE(c.key);
    Texts sets;
    if (!c.size.empty()) sets.push_back(c.key + "=" + c.size);
    if (!c.more.empty()) sets.push_back(c.more);
    const std::optional<Error> refusal = refused(sets, c.world);
    REQUIRE(refusal);
    CHECK(refusal->code() == c.code);
    CHECK(refusal->key() == c.key);
    CHECK(!refusal->helps().empty());
  }
}

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
      return std::ranges::find(planned, one) != planned.end();
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
