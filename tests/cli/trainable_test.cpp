// plan, validate and train ask the same question of a job: what trains. What cannot is planned with
// a line that says so, and refused by the other two before a rank joins.
#include <doctest/doctest.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "ran.h"

namespace trainable_test {

namespace json = boost::json;
namespace fs = std::filesystem;

namespace {

struct Folder {
  fs::path path =
      fs::temp_directory_path() / ("meshwright_trainable_" + std::to_string(::getpid()));
  Folder() {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path / name) << text;
    return (path / name).string();
  }
};

std::string model(const Folder& folder, const std::string& name, const std::string& architecture,
                  const std::string& fields) {
  return folder.write(
      name,
      R"({"architectures":[")" + architecture +
          R"("],"hidden_size":64,"num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":96,)"
          R"("vocab_size":256,"num_hidden_layers":4,"pad_token_id":null)" +
          fields + "}");
}

std::string said(const std::string& key) { return "--set " + key + " "; }

}  // namespace

TEST_CASE(
    "a dtype that training cannot work with is refused by plan, validate and train, with those "
    "that do") {
  const std::string floats = "one of float32, bfloat16, float16, float64";
  struct Row {
    std::string key, list;
  };
  const std::vector<Row> rows = {{"model.torch_dtype", floats},
                                 {"distributed.mp_policy.param_dtype", floats},
                                 {"distributed.mp_policy.reduce_dtype", floats},
                                 {"distributed.mp_policy.output_dtype", floats},
                                 {"distributed.moe.mp_policy.param_dtype", floats},
                                 {"distributed.moe.mp_policy.reduce_dtype", floats},
                                 {"distributed.moe.mp_policy.output_dtype", floats},
                                 {"distributed.moe.lm_head_precision", floats},
                                 {"distributed.pipeline.dtype", floats},
                                 {"distributed.autocast_dtype", "one of bfloat16, float16"}};
  const std::vector<std::string> whole = {"int8", "short", "torch.int32", "long", "bool"};
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    // Every key under one verb and every verb with one key: starting the program takes most of the
    // time.
    for (const char* verb : {"validate", "plan", "train"}) {
      if (verb != std::string("validate") && i % 3 != 0) continue;
      std::string arguments = std::string(verb) + " configs/first_fsdp2_cpu.toml --set " + row.key +
                              "=" + whole[i % whole.size()];
      CAPTURE(arguments);
      Ran ran = run(arguments, "2>&1");
      INFO(ran.out);
      CHECK(ran.status == 2);
      CHECK(ran.out.find("E0205") != std::string::npos);
      CHECK(ran.out.find(row.key + " = \"" + whole[i % whole.size()] + "\", but it must be " +
                         row.list) != std::string::npos);
    }
    Ran unknown = run("validate configs/first_fsdp2_cpu.toml --set " + row.key + "=float8", "2>&1");
    CHECK(unknown.status == 2);
    CHECK(unknown.out.find("E0214") != std::string::npos);
  }
  CHECK(run("validate configs/first_fsdp2_cpu.toml --set distributed.autocast_dtype=float32")
            .status == 2);
  for (const char* name : {"bf16", "half", "torch.float64", "float"}) {
    CAPTURE(name);
    CHECK(
        run(std::string(
                "validate configs/first_fsdp2_cpu.toml --set distributed.mp_policy.param_dtype=") +
            name)
            .status == 0);
  }
}

TEST_CASE(
    "what can be planned but not trained is said by plan, and refused by validate and train before "
    "a rank joins") {
  Folder folder;
  std::string capped =
      model(folder, "capped.json", "Gemma3ForCausalLM", R"(,"attn_logit_softcapping":50.0)");
  std::string dropout = model(folder, "dropout.json", "Phi3ForCausalLM", R"(,"resid_pdrop":0.1)");
  std::string jitter =
      model(folder, "jitter.json", "MixtralForCausalLM", R"(,"router_jitter_noise":0.1)");
  std::string ropes = model(folder, "ropes.json", "Qwen2ForCausalLM",
                            R"(,"rope_parameters":{"full_attention":{"rope_theta":5}})");
  // Earlier results, which a refusal must leave alone.
  fs::create_directories(folder.path / "runs/kept/checkpoints/step_00000004");
  const std::string here =
      said("run.dir=" + (folder.path / "runs").string()) + said("run.name=kept");
  // One auxiliary loss of all routers.
  const std::string balanced =
      said("model.config=" +
           model(folder, "balanced.json", "MixtralForCausalLM", R"(,"output_router_logits":true)"));
  struct Row {
    std::string sets, key, words;
    std::string code = "E0390";
  };
  const std::string dropped =
      model(folder, "dropped.json", "LlamaForCausalLM", R"(,"attention_dropout":0.1)");
  for (const Row& row :
       {Row{balanced + said("distributed.pp_size=2"), "distributed.pp_size",
            "the auxiliary loss of this model is one of all its routers together"},
        Row{said("model.config=" + dropped) + said("distributed.cp_size=2"), "distributed.cp_size",
            "drops attention out in training", "E0316"},
        Row{said("model.config=" + capped), "model.config", "attn_logit_softcapping does not run"},
        Row{said("model.config=" + dropout), "model.config", "resid_pdrop above 0 does not run"},
        Row{said("model.config=" + jitter), "model.config",
            "router_jitter_noise above 0 does not run"},
        Row{said("model.config=" + ropes), "model.config",
            "rope_parameters differs between layer types"}}) {
    CAPTURE(row.sets);
    const std::string file = "configs/first_fsdp2_cpu.toml " + here + row.sets;
    Ran plan = run("plan " + file + "--world-size 2", "2>&1");
    INFO(plan.out);
    CHECK(plan.status == 0);
    CHECK(plan.out.find("warning: this plan cannot be trained: ") != std::string::npos);
    CHECK(plan.out.find(row.words) != std::string::npos);
    json::object machine =
        json::parse(run("plan " + file + "--world-size 2 --json").out).as_object();
    CHECK(!machine.at("trains").as_bool());
    REQUIRE(machine.at("why").as_array().size() == 1);
    CHECK(std::string(machine.at("why").as_array()[0].as_string()).find(row.words) !=
          std::string::npos);
    // A rank that its launcher started asks by itself: it does not wait for the others.
    const std::string rank = "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=1";
    for (const Ran& refused :
         {run("validate " + file + "--world-size 2", "2>&1"), run("validate " + file, "2>&1"),
          run("train " + file + "--nproc 2", "2>&1"), run("train " + file, "2>&1", rank)}) {
      INFO(refused.out);
      CHECK(refused.status == 3);
      CHECK(refused.out.find("error[" + row.code + "]") != std::string::npos);
      CHECK(refused.out.find(row.words) != std::string::npos);
      CHECK(refused.out.find(row.key) != std::string::npos);
    }
  }
  CHECK(fs::exists(folder.path / "runs/kept/checkpoints/step_00000004"));
  CHECK(std::distance(fs::directory_iterator(folder.path / "runs/kept"), {}) == 1);
  json::object fine =
      json::parse(run("plan configs/first_fsdp2_cpu.toml --world-size 2 --json").out).as_object();
  CHECK(fine.at("trains").as_bool());
  CHECK(fine.at("why").as_array().empty());
}

TEST_CASE("a file for planning alone is valid, and what train would still need is told") {
  Folder folder;
  std::string bare = folder.write("bare.toml", "schema = 1\n[distributed]\ntp_size = 2\n");
  const std::string told =
      "notice: enough for plan, not for train: train needs a model; train needs data: dataset.path "
      "is not set";
  Ran ran = run("validate " + bare + " --world-size 8", "2>&1");
  INFO(ran.out);
  CHECK(ran.status == 0);
  CHECK(ran.out.find(told) != std::string::npos);
  CHECK(!json::parse(run("validate " + bare + " --world-size 8 --json").out)
             .as_object()
             .at("trains")
             .as_bool());
  Ran plan = run("plan " + bare + " --world-size 8", "2>&1");
  CHECK(plan.status == 0);
  CHECK(plan.out.find("cannot be trained") == std::string::npos);  // nothing is refused yet
  CHECK(!json::parse(run("plan " + bare + " --world-size 8 --json").out)
             .as_object()
             .at("trains")
             .as_bool());
  // Keys that only training reads say what the file is meant for.
  for (const char* more :
       {"run.name=first", "checkpoint.keep=3", "lr_scheduler.lr_warmup_steps=5",
        "step_scheduler.max_steps=9", "optimizer.lr=1e-3", "dataset.kind=text"}) {
    CAPTURE(more);
    Ran training = run("validate " + bare + " --world-size 8 --set " + more, "2>&1");
    INFO(training.out);
    CHECK(training.status == 2);
    CHECK(training.out.find("error[E0206]") != std::string::npos);
    CHECK(training.out.find("train needs a model") != std::string::npos);
    CHECK(training.out.find("2 errors") != std::string::npos);
  }
  CHECK(json::parse(run("validate configs/first_fsdp2_cpu.toml --json").out)
            .as_object()
            .at("trains")
            .as_bool());
}

}  // namespace trainable_test
