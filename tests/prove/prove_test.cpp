// `prove` finds each fault, says which kind of fault it is and where, and finds nothing where
// nothing is wrong.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <cstdio>
#include <string>
#include <vector>

namespace {

namespace json = boost::json;

struct Said {
  int status = 0;
  std::string out;
};

Said prove(const std::string& arguments) {
  const std::string command = "cd '" MESHWRIGHT_SOURCE_DIR
                              "' && env -u WORLD_SIZE -u RANK NO_COLOR=1 COLUMNS=200 "
                              "OMP_NUM_THREADS=1 LC_ALL=C.UTF-8 '" MESHWRIGHT_BUILD_DIR
                              "/bin/meshwright' prove " +
                              arguments + " 2>&1 </dev/null";
  std::FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  Said out;
  std::array<char, 4096> buffer;
  for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    out.out.append(buffer.data(), n);
  const int raw = pclose(pipe);
  out.status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
  return out;
}

const std::string kMutant = "--set 'plugins.load=[\"" MUTANTS
                            "\"]' --set distributed.strategy=mutants --set "
                            "distributed.mutants.fault=";

struct Mutant {
  std::string file, fault;
  std::vector<std::string> says;  // all of them
};

void check_found(const Mutant& mutant) {
  const Said said = prove("configs/" + mutant.file + ".toml " + kMutant + mutant.fault);
  INFO(mutant.file << " " << mutant.fault << "\n" << said.out);
  CHECK(said.status == 2);
  for (const std::string& words : mutant.says) {
    CAPTURE(words);
    CHECK(said.out.find(words) != std::string::npos);
  }
}

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
           {sharded, "summed", {"twice the truth on every rank", "has 2 ranks"}},
           {sharded, "last_micro_batch", {"the gradients of "}},
           {sharded, "rank_0_only", {"right on rank 0, wrong on rank 1"}},
           {sharded, "dropped", {"the gradient of model.norm.weight", "zero on every rank"}},
           {sharded, "counted_twice", {"it counts lm_head.weight 2 times"}},
           {sharded, "own_norm", {"other norms on other ranks"}},
           {cut, "no_sum_behind_rows", {"the output of model.layers.0.mlp.down_proj"}},
           {cut, "scaled_output", {"the output of model.layers.1.mlp.up_proj", "1.0001 times"}},
           {cut,
            "scaled_backward",
            {"the gradient of the output of model.layers.0.mlp", "twice the truth"}},
           {sharded, "throws", {"rank 1", "something odd"}},
           {sharded, "crashes", {"the process of the ranks ended by signal"}}})
    check_found(mutant);
}

TEST_CASE("prove names what is wrong, of every kind" * doctest::test_suite("whole")) {
  const std::string sharded = "first_fsdp2_cpu", copies = "hsdp_cpu";
  for (const Mutant& mutant :
       std::vector<Mutant>{{sharded, "averaged_twice", {"1/2 of the truth on every rank"}},
                           {sharded, "divided", {"1/2 of the truth on every rank"}},
                           {sharded, "left_out", {"it leaves lm_head.weight out"}},
                           {sharded, "steps_add_up", {"updates after 2 steps"}},
                           {sharded, "not_updated", {"weight model.embed_tokens.weight"}},
                           {copies, "drift", {"replicas, to the bit"}},
                           {sharded, "exits", {"the process of the ranks ended with status 7"}}})
    check_found(mutant);
}

TEST_CASE("prove finds nothing in a strategy without a fault, nor in ready configurations") {
  check_proven("configs/first_fsdp2_cpu.toml " + kMutant + "none");
  check_proven("configs/tp_cpu.toml");
}
