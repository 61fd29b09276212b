// `prove` finds each fault, says which kind of fault it is and where, and finds nothing where
// nothing is wrong. Wrappers at run time plant them: in what bundled code has made (mutants.cpp),
// and in three plugins: a policy, a ParallelModel of its own, and a model that tensor parallelism
// does not know. By the classes that public reports of silent faults fall into:
//
//   summed where it should be averaged, or the other way   summed, averaged_twice, experts_summed
//   a sum over tp is missing in backward                   no_sum_before_columns, norm_of_stream,
//                                                          sinks_of_stream, first_sinks
//   a norm under sequence parallelism counts a part        unsummed_norm
//   the norm counts twice, leaves out, is each rank's own  counted_twice, left_out, own_norm,
//                                                          stage_norm, counted_tp_times,
//                                                          counts_copies
//   accumulation                                           last_micro_batch, divided,
//   moving_average a mean of means                                        mean_of_means the
//   auxiliary loss is scaled or lost                   auxiliary_scaled, auxiliary_lost
//   recomputation takes something else                     recompute_differs, other_experts
//   tokens see other documents                             other_documents
//   backward of cp leaves out a block, or counts it twice  block_left_out, tokens_twice
//   tied weights                                           tied_lost, tied_apart
//   replicas begin apart, drift, or decide apart           random_start, drift, last_digit,
//   skips_alone,
//                                                          replicas_apart, own_buffer
//   checkpoints                                            checkpoint_test.cpp
//   a reduction that does not come back                    not_contiguous
//   padding takes part                                     padding_counted, decays_twice
//
// A save beside the next step is tests/faults_resume's, whose kills fall into it.
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

// What a plugin of these tests says when it has the fault.
std::string of_plugin(const std::string& library, const std::string& table) {
  return "--set 'plugins.load=[\"" + library + "\"]' --set " + table + ".fault=";
}
const std::string kOwnModel = "configs/ddp_cpu.toml --set distributed.strategy=own_model " +
                              of_plugin(OWN_MODEL, "distributed.own_model"),
                  kPolicy = "configs/hsdp_cpu.toml --set distributed.strategy=of_policy " +
                            of_plugin(OF_POLICY, "distributed.of_policy"),
                  kHeads = "tests/prove/heads.toml " + of_plugin(HEADS, "model.heads");

struct Mutant {
  std::string file, fault;
  std::vector<std::string> says;  // all of them
  std::string more = {};          // arguments
};

void check_said(const std::string& arguments, const std::vector<std::string>& says) {
  const Said said = prove(arguments);
  INFO(arguments << "\n" << said.out);
  CHECK(said.status == 2);
  for (const std::string& words : says) {
    CAPTURE(words);
    CHECK(said.out.find(words) != std::string::npos);
  }
}
void check_found(const Mutant& mutant) {
  check_said("configs/" + mutant.file + ".toml " + kMutant + mutant.fault + " " + mutant.more,
             mutant.says);
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

TEST_CASE("prove names what is wrong with an axis, with experts, and when layers are run again" *
          doctest::test_suite("whole")) {
  const std::string sharded = "first_fsdp2_cpu", cut = "tp_cpu", experts = "experts_cpu",
                    again = "--set distributed.activation_checkpointing=full";
  const std::string missing = "a sum over tp is missing behind model.layers.";
  for (const Mutant& mutant : std::vector<Mutant>{
           {cut,
            "no_sum_before_columns",
            {missing + "1.post_attention_layernorm", "copy_to("},
            kSums},
           {cut,
            "unsummed_norm",
            {missing + "0.input_layernorm", "replicated_with_grad_allreduce"}},
           {cut, "counted_tp_times", {"the gradient norm: off by", "times that of one process"}},
           {"pipeline_cpu", "stage_norm", {"other norms on other ranks of pp"}},
           {sharded, "mean_of_means", {"of dp_shard weigh differently", "a mean of means"}},
           {experts, "auxiliary_scaled", {"the auxiliary loss of experts is 3 times the truth"}},
           {experts, "auxiliary_lost", {"the auxiliary loss of experts is zero on every rank"}},
           {experts,
            "experts_summed",
            {"the gradients of model.layers.0.mlp.experts.down_projs", "twice the truth",
             "ep have 2"},
            "--set distributed.ep_size=2"},
           {sharded,
            "recompute_differs",
            {"the output of model.layers.1.mlp.up_proj, computed again", "(HookHost::around)"},
            again},
           {experts, "other_experts", {"model.layers.1.mlp.gate, computed again"}, again},
           {"chat_tuning_cpu", "other_documents", {"the output of model.layers.1.self_attn.core"}},
           {"context_cpu",
            "block_left_out",
            {"the gradient of the output of model.layers.1.self_attn.k_proj",
             "right on rank 0, wrong on rank 1, other ranks of cp"}},
           {"context_cpu",
            "tokens_twice",
            {"the gradient of the output of model.layers.1.self_attn.v_proj", "twice the truth"}},
           {"pipeline_cpu", "tied_lost", {"the gradient of model.embed_tokens.weight"}},
           {"ddp_cpu", "tied_apart", {"model.embed_tokens"}}})
    check_found(mutant);
}

TEST_CASE("prove names what is wrong with a ParallelModel or a policy of somebody else's" *
          doctest::test_suite("whole")) {
  using Faults = std::vector<std::pair<std::string, std::vector<std::string>>>;
  for (const auto& [fault, says] : Faults{
           {"not_contiguous", {"a mean over dp is missing behind lm_head", "divided by its size"}},
           {"padding_counted", {"the gradient norm: off by"}},
           {"counts_copies", {"the gradient norm: off by", "1.4142136 times that of one process"}},
           {"skips_alone", {"replicas of weight model.embed_tokens.weight", "ranks of dp"}},
           {"moving_average", {"micro-batches of a step weigh differently, 0.25, 0.25, 0.5"}},
           {"random_start", {"replicas of weight model.norm.weight before the first step"}},
           {"decays_twice", {"the update of lm_head.weight in step 0"}},
           {"last_digit", {"replicas of weight lm_head.weight", "ranks of dp"}}})
    check_said(kOwnModel + fault, says);
  check_said(kPolicy + "replicas_apart",
             {"differs between the ranks of dp_replicate", "ranks of dp_replicate"});
  check_proven(kOwnModel + "none");
  check_proven(kPolicy + "none");
}

TEST_CASE("prove tells of what a model brings: that it is right, refused, or wrong" *
          doctest::test_suite("whole")) {
  const Said right = prove(kHeads + "none");
  INFO(right.out);
  CHECK(right.status == 0);
  CHECK(right.out.find("layers.*.attention.norm.weight  whole, its gradients summed over tp") !=
        std::string::npos);
  using Faults = std::vector<std::pair<std::string, std::vector<std::string>>>;
  for (const auto& [fault, says] : Faults{
           {"norm_of_stream",
            {"layers.*.attention.norm.weight  whole, its gradients alike on the ranks of tp  WRONG",
             "attention.norm"}},
           {"sinks_of_stream", {"layers.0.attention.sinks"}},
           {"first_sinks", {"layers.0.attention.sinks"}},
           {"whole_gate", {"in forward, on rank 0"}},
           {"loss_of_columns", {"the gradient of the output of lm_head"}},
           {"own_buffer", {"replicas of buffer layers.0.attention.bias"}}})
    check_said(kHeads + fault, says);
  const Said refused = prove(kHeads + "undeclared");
  INFO(refused.out);
  CHECK(refused.status == 3);
  CHECK(refused.out.find("error[E0311]") != std::string::npos);
  CHECK(refused.out.find("replicated_with_grad_allreduce") != std::string::npos);
}

TEST_CASE("prove draws where numbers turn wrong") {
  const Said said = prove("configs/tp_cpu.toml " + kMutant + "unsummed_norm");
  INFO(said.out);
  for (const char* line :
       {"                       forward    backward   gradients", "tp                     ",
        "▶ model.layers.0.input_layernorm", "· right  x wrong"})
    CHECK(said.out.find(line) != std::string::npos);
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
