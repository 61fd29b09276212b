// What `plan` shows a person, character by character. After a change that is meant:
// MESHWRIGHT_WRITE_PICTURES=1 build/bin/test_plans writes tests/data/pictures and the time lines of
// docs/pipeline.md anew; look at the difference before committing it.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "engine/job/render.h"

using namespace meshwright;
namespace fs = std::filesystem;

namespace {

struct Picture {
  const char* name;
  const char* config;
  int64_t world, rank;
  std::vector<std::string> sets;
};

const Picture kPictures[] = {
    {"hsdp_tp_8", "hsdp_tp", 8, 5, {}},
    {"experts_32", "moe_ep", 32, 9, {}},
    {"experts_replicated_32",
     "moe_ep",
     32,
     17,
     {"distributed.dp_replicate_size=2", "distributed.tp_size=2",
      "distributed.sequence_parallel=false"}},
    {"pipeline_32", "pipeline_interleaved", 32, 9, {}},
    {"pipeline_64", "pipeline_64", 64, 9, {}},
    {"large_131072",
     "hsdp_tp",
     131072,
     77777,
     {"distributed.pp_size=16", "distributed.dp_replicate_size=8", "distributed.tp_size=8",
      "distributed.cp_size=2", "step_scheduler.global_batch_size=65536"}},
    {"replicas_5000", "ddp_cpu", 5000, 4242, {"step_scheduler.global_batch_size=20000"}},
};

plan::JobPlan plan_of(const Picture& picture, std::optional<plan::Job>& job) {
  Diagnostics diagnostics;
  job = plan::load_job(
      {.file = fs::path(MESHWRIGHT_SOURCE_DIR "/configs") / (std::string(picture.config) + ".toml"),
       .sets = picture.sets,
       .environment = {}},
      diagnostics);
  for (const Error& error : diagnostics.errors()) FAIL(error.what());
  return plan::make_plan(*job, {picture.world, picture.rank, false});
}

}  // namespace

TEST_CASE(
    "the picture of a plan is the one that was looked at, at two widths and without line-drawing "
    "characters") {
  fs::path folder = MESHWRIGHT_SOURCE_DIR "/tests/data/pictures";
  const bool write = std::getenv("MESHWRIGHT_WRITE_PICTURES") != nullptr;
  for (const Picture& picture : kPictures) {
    std::optional<plan::Job> job;
    plan::JobPlan plan = plan_of(picture, job);
    for (int width : {80, 120}) {
      // One of them as a terminal without Unicode shows it.
      bool unicode = std::string(picture.name) != "replicas_5000";
      fs::path file = folder / (std::string(picture.name) + "_" + std::to_string(width) + ".txt");
      CAPTURE(file.filename().string());
      std::string drawn = render::draw({.colour = false, .unicode = unicode, .width = width}, plan);
      if (write) std::ofstream(file, std::ios::binary) << drawn;
      std::ifstream in(file, std::ios::binary);
      REQUIRE(in.good());
      std::string golden((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
      CHECK(drawn == golden);
      for (size_t at = 0; at < drawn.size();) {
        size_t end = std::min(drawn.find('\n', at), drawn.size());
        std::string line = drawn.substr(at, end - at);
        INFO(line);
        CHECK(report::display_width(line) <= static_cast<size_t>(width));
        CHECK(!line.ends_with(' '));
        at = end + 1;
      }
      CHECK(drawn.find(" [" + std::to_string(picture.rank) + "] ") != std::string::npos);
    }
  }
}

TEST_CASE("docs/pipeline.md shows the time line of each schedule as it is drawn") {
  const fs::path file = MESHWRIGHT_SOURCE_DIR "/docs/pipeline.md";
  std::ifstream in(file, std::ios::binary);
  REQUIRE(in.good());
  std::string page((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::string fence = "```\n";
  for (const std::string name : {"GPipe", "1F1B", "LoopedBFS", "Interleaved1F1B",
                                 "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"}) {
    CAPTURE(name);
    std::optional<plan::Job> job;
    const plan::JobPlan plan = plan_of(
        {"", "pipeline_v_cpu", 4, 0, {"distributed.pipeline.pp_schedule=\"" + name + "\""}}, job);
    // `plan` indents it by two columns.
    const std::string drawn = render::pipeline_timeline({.colour = false, .width = 110}, plan);
    const size_t heading = page.find("\n### " + name + "\n");
    REQUIRE(heading != std::string::npos);
    const size_t begin = page.find(fence, heading) + fence.size(), end = page.find(fence, begin);
    REQUIRE(end != std::string::npos);
    if (std::getenv("MESHWRIGHT_WRITE_PICTURES") != nullptr)
      page.replace(begin, end - begin, drawn);
    else
      CHECK(page.substr(begin, end - begin) == drawn);
  }
  if (std::getenv("MESHWRIGHT_WRITE_PICTURES") != nullptr)
    std::ofstream(file, std::ios::binary) << page;
}
