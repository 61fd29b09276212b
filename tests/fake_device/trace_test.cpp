// What --trace shows of a device: how long its streams were at something, not how long the host
// took to ask for it.
#include <doctest/doctest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "jobs.h"

using namespace fake_device_jobs;

namespace trace_test {

constexpr int64_t kEach = 20000;  // microseconds of an operation

struct Bar {
  std::string name;
  int64_t lane, begin, end;
};

std::vector<Bar> bars_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  std::vector<Bar> out;
  const boost::json::value all = boost::json::parse(text);
  for (const boost::json::value& value : all.as_array()) {
    const boost::json::object& bar = value.as_object();
    if (bar.at("ph").as_string() != "X") continue;
    const int64_t begin = bar.at("ts").as_int64();
    out.push_back({std::string(bar.at("name").as_string()), bar.at("tid").as_int64(), begin,
                   begin + bar.at("dur").as_int64()});
  }
  return out;
}

std::vector<Bar> named(const std::vector<Bar>& bars, const std::string& name) {
  std::vector<Bar> out;
  std::copy_if(bars.begin(), bars.end(), std::back_inserter(out),
               [&](const Bar& bar) { return bar.name.starts_with(name); });
  std::sort(out.begin(), out.end(), [](const Bar& a, const Bar& b) { return a.begin < b.begin; });
  return out;
}

}  // namespace trace_test

using namespace trace_test;

TEST_CASE("the bars of a trace on a device are as long as its streams take") {
  const Folder folder;
  const std::string each = std::to_string(kEach);
  const Ended ended =
      run_program(folder.path,
                  {"train", "configs/first_fsdp2_cpu.toml", "--trace", "--nproc", "2", "--set",
                   "dist_env.device=cuda", "--set", "step_scheduler.max_steps=3", "--set",
                   "run.name=run", "--set", "run.dir=" + folder.path.string()},
                  On::device, {"FAKE_DEVICE_MICROSECONDS=" + each, "FAKE_DEVICE_DELAYS=1"});
  REQUIRE_MESSAGE(ended.code == 0, ended.said);
  check_logs(ended);
  for (const char* rank : {"rank_0.json", "rank_1.json"}) {
    CAPTURE(std::string(rank));
    const std::vector<Bar> bars = bars_of(folder.path / "run" / "trace" / rank);
    const std::vector<Bar> forwards = named(bars, "forward"), optimizers = named(bars, "optimizer"),
                           gathers = named(bars, "dp_shard all_gather"),
                           reductions = named(bars, "dp_shard reduce_scatter");
    REQUIRE(optimizers.size() == 3);
    CHECK(gathers.size() >= 12);
    CHECK(reductions.size() >= 9);
    for (const std::vector<Bar>* some : {&gathers, &reductions})
      for (size_t i = 0; i < some->size(); ++i) {
        const Bar& bar = some->at(i);
        CHECK(bar.end - bar.begin >= kEach - 1000);
        if (i > 0 && bar.begin < some->at(i - 1).end - 1000)
          CHECK_MESSAGE(false, bar.name << " begins before the one before it ends");
        CHECK(bar.begin >= forwards.front().begin - 1000);
        CHECK(bar.end <= optimizers.back().end + 1000);
      }
    // A step's reductions are over before its optimizer begins, which has several operations.
    for (const Bar& optimizer : optimizers) {
      CHECK(optimizer.end - optimizer.begin >= kEach);
      for (const Bar& reduction : reductions)
        CHECK((reduction.end <= optimizer.begin + 1000 || reduction.begin >= optimizer.end - 1000));
    }
  }
}
