// plan, validate and train ask the same question of a job: what trains. What cannot is planned with
// a line that says so, and refused by the other two before a rank joins.
#include "ran.h"

namespace trainable_test {

namespace {

std::string model(const Folder& folder, const std::string& name, const std::string& architecture,
                  const std::string& fields) {
  return folder.put(
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
    const std::string job = " configs/first_fsdp2_cpu.toml --set " + row.key + "=",
                      type = whole[i % whole.size()];
    for (const std::string verb : {"validate", "plan", "train"})
      if (verb == "validate" || i % 3 == 0)
        check_said(verb + job, {{type, 2, "E0205",
                                 row.key + " = \"" + type + "\", but it must be " + row.list}});
    check_said("validate" + job, {{"float8", 2, "E0214"}});
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
    check_said("plan " + file + "--world-size 2",
               {{"", 0, "warning: this plan cannot be trained: ", row.words}});
    const json::object machine = answer("plan " + file + "--world-size 2");
    CHECK(!machine.at("trains").as_bool());
    REQUIRE(machine.at("why").as_array().size() == 1);
    CHECK(text(machine.at("why").at(0)).find(row.words) != std::string::npos);
    const std::string code = "error[" + row.code + "]";
    check_said("", {{"validate " + file + "--world-size 2", 3, code, row.words, row.key},
                    {"validate " + file, 3, code, row.words, row.key},
                    {"train " + file + "--nproc 2", 3, code, row.words, row.key}});
  }
  CHECK(fs::exists(folder.path / "runs/kept/checkpoints/step_00000004"));
  CHECK(std::distance(fs::directory_iterator(folder.path / "runs/kept"), {}) == 1);
  json::object fine = answer("plan configs/first_fsdp2_cpu.toml --world-size 2");
  CHECK(fine.at("trains").as_bool());
  CHECK(fine.at("why").as_array().empty());
}

TEST_CASE("a file for planning alone is valid, and what train would still need is told") {
  Folder folder;
  std::string bare = folder.put("bare.toml", "schema = 1\n[distributed]\ntp_size = 2\n");
  const std::string told =
      "notice: enough for plan, not for train: train needs a model; train needs data: dataset.path "
      "is not set";
  Ran ran = run("validate " + bare + " --world-size 8", "2>&1");
  INFO(ran.out);
  CHECK(ran.status == 0);
  CHECK(ran.says(told));
  CHECK(!answer("validate " + bare + " --world-size 8").at("trains").as_bool());
  Ran plan = run("plan " + bare + " --world-size 8", "2>&1");
  CHECK(plan.status == 0);
  CHECK_FALSE(plan.says("cannot be trained"));  // nothing is refused yet
  CHECK(!answer("plan " + bare + " --world-size 8").at("trains").as_bool());
  // Keys that only training reads say what the file is meant for.
  for (const char* more : {"run.name=first", "checkpoint.keep=3", "lr_scheduler.lr_warmup_steps=5",
                           "step_scheduler.max_steps=9", "optimizer.lr=1e-3", "dataset.kind=text"})
    check_said("validate " + bare + " --world-size 8 --set ",
               {{more, 2, "error[E0206]", "train needs a model", "2 errors"}});
  CHECK(answer("validate configs/first_fsdp2_cpu.toml").at("trains").as_bool());
}

}  // namespace trainable_test
