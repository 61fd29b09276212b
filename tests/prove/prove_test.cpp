// `prove` finds each fault, says which kind of fault it is and where, and finds nothing where
// nothing is wrong. Faults are planted at run time: in bundled code (mutants.cpp), in a policy
// (policy.cpp), in a ParallelModel of its own (own_model.cpp), in a model that tensor parallelism
// does not know (heads_model.cpp). By the classes of silent faults that public reports have:
//
//  1 sums and means over an axis     summed, averaged_twice, experts_summed, replicas_apart
//  2 a sum over tp missing backward  norm_of_stream, norms_of_stream, no_sum_before_columns,
//                                    undeclared (refused by name), sinks_of_stream, first_sinks
//  3 replicated, and summed tp times bias_times_tp, bias_on_every_rank, no_sum_behind_rows
//  4 sequence parallel norms         unsummed_norm
//  5 the norm                        counted_twice, left_out, own_norm, counted_tp_times,
//                                    stage_norm, counts_copies
//  6 accumulation                    last_micro_batch, divided, moving_average, steps_add_up
//  7 means of means                  mean_of_means, loss_of_columns (a loss of its own)
//  8 auxiliary losses                auxiliary_scaled, auxiliary_lost
//  9 biases of routers               bias_each_micro_batch, bias_in_evaluation, bias_again
// 10 recomputation                   recompute_differs, other_experts
// 11 documents of a pack             other_documents
// 12 cp's backward                   block_left_out, tokens_twice
// 13 tied weights over stages        tied_lost, tied_apart
// 14 other random values             random_start, own_buffer
// 15 checkpoints into other layouts  names_swapped, parts_swapped, loads_more, steps_otherwise,
//                                    not_saved (checkpoint_test.cpp)
// 16 a save of two steps             mixes_steps (the same; no save of a proof runs beside a step)
// 17 ranks that decide apart         skips_alone, rank_0_only
// 18 not contiguous, not reduced     not_contiguous
// 19 place of an element             last_digit, drift
// 20 padding                         padding_counted, decays_twice
// Beside them: dropped, not_updated, scaled_output, scaled_backward, rounds, whole_gate, throws,
// exits, crashes, hangs.
#include <doctest/doctest.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <future>
#include <string>
#include <vector>

#include "tests/prove/said.h"

namespace {

namespace json = boost::json;

Said prove(const std::string& arguments) { return meshwright_says("prove " + arguments); }

std::string quoted(const std::string& text) { return "\'" + text + "\'"; }

// The plugins of a strategy, and its fault.
std::string with(const std::string& strategy, const std::string& fault,
                 const std::string& libraries) {
  return " --set " + quoted("plugins.load=[" + libraries + "]") +
         " --set distributed.strategy=" + strategy + " --set distributed." + strategy +
         ".fault=" + fault + " ";
}
std::string mutant(const std::string& fault) { return with("mutants", fault, "\"" MUTANTS "\""); }
std::string own_model(const std::string& fault) {
  return with("own_model", fault, "\"" OWN_MODEL "\"");
}
std::string of_policy(const std::string& fault) {
  return with("of_policy", fault, "\"" OF_POLICY "\"");
}
// The model of tests, under the strategy of the job and under one that has a fault.
std::string heads(const std::string& fault) {
  return " --set " + quoted("plugins.load=[\"" HEADS "\"]") + " --set model.heads.fault=" + fault +
         " ";
}
std::string heads_under(const std::string& fault) {
  return with("mutants", fault, "\"" MUTANTS "\", \"" HEADS "\"");
}

struct Mutant {
  std::string file, arguments;
  std::vector<std::string> says;  // all of them
  int status = 2;                 // 3: the plan refuses it, by name
};

// Two at a time: a proof mostly waits for its ranks.
void check_found(const std::vector<Mutant>& mutants) {
  constexpr size_t kAtOnce = 2;
  std::vector<std::future<Said>> all;
  auto start = [&](size_t i) {
    all.push_back(std::async(std::launch::async, [mutant = mutants[i]] {
      return prove(mutant.file + ".toml " + mutant.arguments);
    }));
  };
  for (size_t i = 0; i < std::min(kAtOnce, mutants.size()); ++i) start(i);
  for (size_t i = 0; i < mutants.size(); ++i) {
    const Said said = all[i].get();
    if (all.size() < mutants.size()) start(all.size());
    INFO(mutants[i].file << " " << mutants[i].arguments << "\n" << said.out);
    CHECK(said.status == mutants[i].status);
    for (const std::string& words : mutants[i].says) {
      CAPTURE(words);
      CHECK(said.out.find(words) != std::string::npos);
    }
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

const std::string kSharded = "configs/first_fsdp2_cpu", kCut = "configs/tp_cpu",
                  kCopies = "configs/hsdp_cpu", kWhole = "configs/ddp_cpu",
                  kExperts = "configs/experts_cpu", kContext = "configs/context_cpu",
                  kStages = "configs/pipeline_cpu", kPacks = "configs/chat_tuning_cpu",
                  kHeads = "tests/prove/heads";
// Ranks of tp, cp or pp alone, so that no other axis has as many.
const std::string kTwo = " --world-size 2 ";
const std::string kGemma = " --set model.config=configs/models/gemma3-tiny.json ";
const std::string kAgain = " --set distributed.activation_checkpointing=full ";
const std::string kRouters = " --set model.heads.experts=true --set distributed.tp_size=1 ";
const std::string kRoutersBias = "layers.0.mlp.gate.e_score_correction_bias";

TEST_CASE("prove names what is wrong") {
  check_found(
      {{kSharded, mutant("summed"), {"twice the truth on every rank", "dp_shard has 2 ranks"}},
       {kSharded, mutant("counted_twice"), {"it counts lm_head.weight 2 times"}},
       {kCut,
        mutant("no_sum_behind_rows") + kSums,
        {"the output of model.layers.0.mlp.down_proj", "a sum over tp is missing"}},
       {kHeads,
        heads("norm_of_stream") + kTwo,
        {"a sum over tp is missing behind layers.0.attention.norm",
         "replicated_with_grad_allreduce", "forward    backward   gradients",
         "▶ layers.0.attention.norm", "· right  x wrong",
         "layers.*.attention.norm.weight  whole, its gradients alike on the ranks of tp  WRONG"}},
       {kHeads,
        heads("undeclared") + kTwo,
        {"error[E0311]: layers.0.attention.norm stands whole among the projections",
         "replicated_with_grad_allreduce"},
        3},
       {kHeads,
        heads("width_by_heads") + kTwo,
        {"the first operator that differs is that of layers.0.attention: aten::div (1st)"}},
       {kWhole,
        own_model("counts_copies"),
        {"it counts every parameter 2 times, once for each rank of dp"}},
       {kSharded,
        mutant("crashes"),
        {"the plugin mutants", "crashed in begin_micro_batch, on rank 1"}}});
}

TEST_CASE("prove names what is wrong, of every kind" * doctest::test_suite("whole")) {
  check_found(
      {{kSharded, mutant("last_micro_batch"), {"those of the last micro-batch of a step alone"}},
       {kSharded, mutant("dropped"), {"the gradient of model.norm.weight", "zero on every rank"}},
       {kSharded,
        mutant("averaged_twice"),
        {"1/2 of the truth on every rank", "dp_shard has 2 ranks"}},
       {kSharded,
        mutant("divided"),
        {"1/3 of the truth on every rank", "a step has 3 micro-batches"}},
       {kSharded,
        mutant("rank_0_only"),
        {"right on rank 0, wrong on rank 1, other ranks of dp_shard: 1.25 times"}},
       {kSharded, mutant("left_out"), {"it leaves lm_head.weight out"}},
       {kSharded, mutant("own_norm"), {"other norms on other ranks of dp_shard"}},
       {kSharded,
        mutant("steps_add_up"),
        {"in step 1", "those of the step before are still in them"}},
       {kSharded, mutant("not_updated"), {"the update of model.embed_tokens.weight", "zero"}},
       {kCut,
        mutant("scaled_output"),
        {"the output of model.layers.1.mlp.up_proj", "1.0001 times"}},
       {kCut,
        mutant("scaled_backward"),
        {"the gradient of the output of model.layers.0.mlp", "twice the truth"}},
       {kCopies,
        mutant("drift"),
        {"ranks 1 and 3 hold it differently, which are ranks of dp_replicate"}},
       {kSharded, mutant("throws"), {"rank 1", "something odd"}},
       {kSharded, mutant("exits"), {"the process of the ranks ended with status 7"}}});
}

TEST_CASE("faults of tensor, sequence and expert parallelism" * doctest::test_suite("whole")) {
  check_found(
      {{kExperts,
        mutant("experts_summed") + " --set distributed.ep_size=2",
        {"model.layers.0.mlp.experts.down_projs", "twice the truth on every rank", "ep have 2"}},
       {kCut,
        mutant("norms_of_stream") + kGemma + kTwo + kSums,
        {"a sum over tp is missing behind model.layers.0.self_attn.k_norm"}},
       {kCut,
        mutant("no_sum_before_columns") + kTwo + kSums,
        {"the gradient of the output of model.layers.1.self_attn",
         "a sum over tp is missing behind model.layers.1.post_attention_layernorm", "copy_to("}},
       {kHeads,
        heads_under("bias_times_tp") + kTwo,
        {"layers.0.attention.output.bias", "twice the truth", "tp has 2 ranks"}},
       {kHeads,
        heads_under("bias_on_every_rank") + kTwo,
        {"the output of layers.1.attention.output", "a bias that each rank of tp adds"}},
       {kCut,
        mutant("unsummed_norm") + kTwo,
        {"a sum over tp is missing behind model.layers.0.input_layernorm"}},
       {kCut,
        mutant("counted_tp_times") + kTwo,
        {"it counts what the ranks of tp all hold (model.layers.0.input_layernorm",
         "2 times, once for each rank of tp"}},
       {kHeads,
        heads("louder_backward") + kTwo,
        {"layers.1.attention: aten::transpose (3rd), which comes from", "Louder"}},
       {kHeads,
        heads("first_sinks") + kTwo,
        {"the output of layers.0.attention.sinks", "other ranks of tp"}},
       {kHeads,
        heads("sinks_of_stream") + kTwo,
        {"layers.0.attention.sinks.weight", "differs between the ranks of tp"}},
       {kHeads, heads("whole_gate") + kTwo, {"in forward, on rank 0"}},
       {kHeads, heads("loss_of_columns") + kTwo, {"the loss of step 0", "over tp", "loss_sum()"}},
       {kHeads,
        heads("own_buffer") + kTwo,
        {"replicas of buffer layers.0.attention.bias", "which are ranks of tp"}},
       {kExperts,
        mutant("auxiliary_scaled"),
        {"the auxiliary loss of model.layers.0.mlp", "3 times the truth"}},
       {kExperts,
        mutant("auxiliary_lost"),
        {"the auxiliary loss of model.layers.0.mlp", "is zero on every rank"}},
       {kHeads,
        heads_under("bias_each_micro_batch") + kRouters,
        {"the change of buffer " + kRoutersBias, "not in a micro-batch"}},
       {kHeads,
        heads_under("bias_again") + kRouters + kAgain,
        {"the change of buffer " + kRoutersBias, "nor when it is computed again"}},
       {kHeads,
        heads_under("bias_in_evaluation") + kRouters,
        {"the evaluation writes to buffer " + kRoutersBias}}});
}

TEST_CASE("faults of data, recomputation, context and stages" * doctest::test_suite("whole")) {
  check_found({{kSharded,
                mutant("mean_of_means"),
                {"the gradient of the output of lm_head", "of dp_shard weigh differently",
                 "a mean of means"}},
               {kSharded,
                mutant("recompute_differs") + kAgain,
                {"the output of model.layers.1.mlp.up_proj, computed again", "on every rank"}},
               {kExperts,
                mutant("other_experts") + kAgain,
                {"the output of model.layers.1.mlp.gate, computed again"}},
               {kPacks, mutant("other_documents"), {"the output of model.layers.1.self_attn.core"}},
               {kContext,
                mutant("block_left_out") + kTwo,
                {"the gradient of the output of model.layers.1.self_attn.k_proj",
                 "right on rank 0, wrong on rank 1, other ranks of cp"}},
               {kContext,
                mutant("tokens_twice") + kTwo,
                {"the gradient of the output of model.layers.1.self_attn.v_proj",
                 "other ranks of cp: twice the truth"}},
               {kStages,
                mutant("tied_lost") + kGemma + kTwo,
                {"the gradient of model.embed_tokens.weight", "stages of pp share it"}},
               {kStages,
                mutant("tied_apart") + kGemma + kTwo,
                {"replicas of weight model.embed_tokens.weight", "which are ranks of pp"}},
               {kStages,
                mutant("stage_norm") + kTwo,
                {"other norms on other ranks of pp", "a sum over pp is missing"}}});
}

TEST_CASE("faults of a policy and of a model of one's own" * doctest::test_suite("whole")) {
  check_found(
      {{kCopies, of_policy("replicas_apart"), {"differs between the ranks of dp_replicate"}},
       {kCopies, of_policy("rounds"), {"as numbers of fewer digits", "main_gradients"}},
       {kWhole,
        own_model("not_contiguous"),
        {"the gradient of lm_head.weight", "a mean over dp is missing behind lm_head"}},
       {kWhole, own_model("padding_counted"), {"the gradient norm", "whether it counts padding"}},
       {kWhole, own_model("skips_alone"), {"hold it differently, which are ranks of dp"}},
       {kWhole,
        own_model("moving_average"),
        {"micro-batches of a step weigh differently, 0.25, 0.25, 0.5, 0.5, 1, 1 times"}},
       {kWhole,
        own_model("random_start"),
        {"replicas of weight model.norm.weight before the first step", "ranks of dp"}},
       {kWhole,
        own_model("decays_twice"),
        {"the update of lm_head.weight in step 0", "in rows 58 to 60 of 61 alone"}},
       {kWhole, own_model("last_digit"), {"replicas of weight lm_head.weight", "ranks of dp"}}});
}

TEST_CASE("prove finds nothing in a strategy without a fault, nor in ready configurations") {
  check_proven(kSharded + ".toml" + mutant("none"));
  check_proven(kCut + ".toml");
  check_proven(kHeads + ".toml" + heads("none"));
}

TEST_CASE("prove finds nothing in plugins without a fault" * doctest::test_suite("whole")) {
  check_proven(kWhole + ".toml" + own_model("none"));
  check_proven(kCopies + ".toml" + of_policy("none"));
  check_proven(kHeads + ".toml" + heads_under("none") + kRouters);
  check_proven(kHeads + ".toml" + heads("none_by_row"));
  check_proven(kExperts + ".toml" + mutant("none") + kAgain);
}

TEST_CASE("prove refuses what it cannot prove, and says so") {
  const Said missing = prove("configs/no_such_job.toml");
  INFO(missing.out);
  CHECK(missing.status == 2);
  CHECK(missing.out.find("no_such_job.toml") != std::string::npos);
  CHECK(missing.out.find("help:") != std::string::npos);
  const Said hung = prove("configs/first_fsdp2_cpu.toml --timeout 3 --json " + mutant("hangs"));
  INFO(hung.out);
  CHECK(hung.status == 2);
  const json::object found = json::parse(hung.out).as_object();
  CHECK_FALSE(found.at("proven").as_bool());
  CHECK(hung.out.find("did not end within 3 s and was killed") != std::string::npos);
}
