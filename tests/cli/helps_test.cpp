// What a refusal proposes is accepted: each setting, world and flag that it names is applied.
#include <doctest/doctest.h>

#include <boost/json.hpp>
#include <cmath>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "tests/cli/ran.h"

namespace helps_test {

namespace json = boost::json;

namespace {

std::vector<std::string> helps_of(const std::string& arguments, int status = 3) {
  const Ran ran = run("plan " + arguments + " --json");
  INFO(ran.out);
  REQUIRE(ran.status == status);
  const json::value said = json::parse(ran.out);
  std::vector<std::string> out;
  for (const json::value& help : said.at("error").at("help").as_array())
    out.emplace_back(help.as_string());
  return out;
}

// "set a.b = 2 and c.d = x" as --set takes it; empty: it says something else.
std::string as_sets(const std::string& help) {
  static const std::regex setting(R"(([a-z_]+(?:\.[a-z0-9_]+)+) = ([^\s,;:]+))");
  std::string out;
  if (!help.starts_with("set ")) return out;
  for (std::sregex_iterator it(help.begin(), help.end(), setting), end; it != end; ++it)
    out += " --set '" + it->str(1) + "=" + it->str(2) + "'";
  return out;
}

}  // namespace

TEST_CASE("every setting and every world that a refused plan names is planned") {
  struct Row {
    const char* job;
    int64_t world;
    const char* sets;
  };
  for (const Row& row : {
           // A size that the mesh takes may not divide copies, heads or experts.
           Row{"hsdp_tp", 8, "distributed.tp_size=3"},
           Row{"hsdp_tp", 64, "distributed.tp_size=16"},
           Row{"hsdp_tp", 64, "distributed.dp_replicate_size=3"},
           Row{"hsdp_tp", 64, "distributed.cp_size=3"},
           Row{"hsdp_tp", 64, "step_scheduler.global_batch_size=100"},
           Row{"hsdp_tp", 64, "step_scheduler.local_batch_size=3"},
           Row{"moe_ep", 32, "distributed.ep_size=3"},
           Row{"moe_ep", 24, "distributed.ep_size=16 --set step_scheduler.global_batch_size=48"},
           Row{"pipeline_64", 64, "distributed.pp_size=3"},
           Row{"pipeline_64", 64, "distributed.pipeline.layers_per_stage=3"},
       }) {
    const std::string job = std::string("configs/") + row.job + ".toml --world-size ",
                      set = std::string(" --set ") + row.sets;
    CAPTURE(job);
    CAPTURE(set);
    size_t applied = 0;
    for (const std::string& help : helps_of(job + std::to_string(row.world) + set)) {
      CAPTURE(help);
      const std::string sets = as_sets(help), world = "use a world size of ";
      std::string changed;
      if (!sets.empty())
        changed = std::to_string(row.world) + set + sets;
      else if (help.starts_with(world))
        changed = help.substr(world.size()) + set;
      if (changed.empty()) continue;
      const Ran ran = run("plan " + job + changed, "2>&1");
      INFO(ran.out);
      CHECK(ran.status == 0);
      ++applied;
    }
    CHECK(applied > 0);
  }
}

}  // namespace helps_test
