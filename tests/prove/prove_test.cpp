// `prove` finds each fault, says which kind of fault it is and where, and finds nothing where
// nothing is wrong.
#include <doctest/doctest.h>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <string>
#include <vector>

#include "tests/prove/said.h"

namespace {

namespace json = boost::json;

Said prove(const std::string& arguments) { return meshwright_says("prove " + arguments); }

const std::string kMutant = "--set 'plugins.load=[\"" MUTANTS
                            "\"]' --set distributed.strategy=mutants --set "
                            "distributed.mutants.fault=";

struct Mutant {
  std::string file, fault;
  std::vector<std::string> says;  // all of them
  std::string more = {};          // arguments
};

void check_found(const Mutant& mutant) {
  const Said said =
      prove("configs/" + mutant.file + ".toml " + kMutant + mutant.fault + " " + mutant.more);
  INFO(mutant.file << " " << mutant.fault << "\n" << said.out);
  CHECK(said.status == 2);
  for (const std::string& words : mutant.says) {
    CAPTURE(words);
    CHECK(said.out.find(words) != std::string::npos);
  }
}

// Products that are sums behind their module, and not pieces on their way.
const std::string kSums =
    "--set distributed.sequence_parallel=false "
    "--set distributed.enable_async_tensor_parallel=false";

void check_proven(const std::string& arguments) {
  const Said said = prove(arguments + " --json");
  INFO(arguments << "\n" << said.out);
  REQUIRE(said.status == 0);
  const json::object found = json::parse(said.out).as_object();
  CHECK(found.at("proven").as_bool());
  // It did compare: rows of each run, most of the modules, and none is exactly nothing by accident.
  const json::array& runs = found.at("runs").as_array();
  CHECK(runs.size() == 2);
  CHECK(runs.front().as_object().at("modules").to_number<int64_t>() > 10);
  CHECK(runs.front().as_object().at("rows").as_array().size() >= 9);
}

}  // namespace

TEST_CASE("prove names what is wrong") {
  const std::string sharded = "first_fsdp2_cpu", cut = "tp_cpu";
  for (const Mutant& mutant : std::vector<Mutant>{
           {sharded, "summed", {"twice the truth on every rank", "dp_shard has 2 ranks"}},
           {sharded, "last_micro_batch", {"those of the last micro-batch of a step alone"}},
           {sharded, "dropped", {"the gradient of model.norm.weight", "zero on every rank"}},
           {sharded, "counted_twice", {"it counts lm_head.weight 2 times"}},
           {cut,
            "no_sum_behind_rows",
            {"the output of model.layers.0.mlp.down_proj", "a sum over tp is missing"},
            kSums},
           {cut, "scaled_output", {"the output of model.layers.1.mlp.up_proj", "1.0001 times"}},
           {sharded, "crashes", {"the plugin mutants", "crashed in begin_micro_batch, on rank 1"}}})
    check_found(mutant);
}

TEST_CASE("prove names what is wrong, of every kind" * doctest::test_suite("whole")) {
  const std::string sharded = "first_fsdp2_cpu", copies = "hsdp_cpu";
  for (const Mutant& mutant : std::vector<Mutant>{
           {sharded, "averaged_twice", {"1/2 of the truth on every rank", "dp_shard has 2 ranks"}},
           {sharded, "divided", {"1/3 of the truth on every rank", "a step has 3 micro-batches"}},
           {sharded,
            "rank_0_only",
            {"right on rank 0, wrong on rank 1, other ranks of dp_shard: 1.25 times"}},
           {sharded, "left_out", {"it leaves lm_head.weight out"}},
           {sharded, "own_norm", {"other norms on other ranks of dp_shard"}},
           {sharded, "steps_add_up", {"in step 1", "those of the step before are still in them"}},
           {sharded, "not_updated", {"the update of model.embed_tokens.weight", "zero"}},
           {"tp_cpu",
            "scaled_backward",
            {"the gradient of the output of model.layers.0.mlp", "twice the truth"}},
           {copies,
            "drift",
            {"ranks 1 and 3 hold it differently, which are ranks of dp_replicate"}},
           {sharded, "throws", {"rank 1", "something odd"}},
           {sharded, "exits", {"the process of the ranks ended with status 7"}}})
    check_found(mutant);
}

TEST_CASE("prove finds nothing in a strategy without a fault, nor in ready configurations") {
  check_proven("configs/first_fsdp2_cpu.toml " + kMutant + "none");
  check_proven("configs/tp_cpu.toml");
}

TEST_CASE("prove refuses what it cannot prove, and says so") {
  const Said missing = prove("configs/no_such_job.toml");
  INFO(missing.out);
  CHECK(missing.status == 2);
  CHECK(missing.out.find("no_such_job.toml") != std::string::npos);
  CHECK(missing.out.find("help:") != std::string::npos);
  const Said hung = prove("configs/first_fsdp2_cpu.toml --timeout 3 --json " + kMutant + "hangs");
  INFO(hung.out);
  CHECK(hung.status == 2);
  const json::object found = json::parse(hung.out).as_object();
  CHECK_FALSE(found.at("proven").as_bool());
  CHECK(hung.out.find("did not end within 3 s and was killed") != std::string::npos);
}
