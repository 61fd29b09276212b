// What tensor and sequence parallelism cannot do is refused by plan, validate and train alike,
// before a rank starts.
#include "ran.h"

namespace {

constexpr const char* kLlama = R"("architectures": ["LlamaForCausalLM"], "model_type": "llama")";
constexpr const char* kExperts =
    R"("architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16)";

struct Row {
  const char* name;
  const char* distributed;  // the rest of the file, from [distributed] on
  int64_t ranks;
  int status;
  const char *code, *key;
  std::vector<std::string> says;  // in the message or its helps
  const char* family = kLlama;
  int heads = 4, kv_heads = 2;
  bool tied = false;
};

fs::path folder() {
  fs::path out = fs::path(MESHWRIGHT_BUILD_DIR) / "cli_tensor_parallel";
  fs::create_directories(out);
  return out;
}

std::string write(const Row& row) {
  fs::path model = folder() / "model.json", file = folder() / "job.toml";
  std::ofstream(model)
      << "{" << row.family
      << R"(, "vocab_size": 256, "hidden_size": 96, "intermediate_size": 128, "num_hidden_layers": 2,)"
      << R"("num_attention_heads": )" << row.heads << R"(, "num_key_value_heads": )" << row.kv_heads
      << R"(, "max_position_embeddings": 2048, "rms_norm_eps": 1e-06, "tie_word_embeddings": )"
      << (row.tied ? "true" : "false") << "}";
  std::ofstream(file) << "schema = 1\n[run]\ndir = \"" << (folder() / "runs").string()
                      << "\"\n[model]\nconfig = \"" << model.string()
                      << "\"\n[step_scheduler]\nglobal_batch_size = 8\nlocal_batch_size = "
                         "1\nmax_steps = 1\n[distributed]\n"
                      << row.distributed;
  return file.string();
}

constexpr const char* kMock = "[dataset]\nkind = \"mock\"\nseq_len = 16\n";

}  // namespace

TEST_CASE(
    "what cannot run under tensor parallelism is refused with its key and what would do, by plan, "
    "validate and train") {
  const std::string patterns = "tp_size = 2\n[distributed.tp_plan]\n";
  const std::string attention = "\"model.layers.*.self_attn.", mlp = "\"model.layers.*.mlp.";
  const std::string on_norm = patterns + "\"model.norm\" = \"colwise\"\n",
                    sideways = patterns + "\"lm_head\" = \"sideways\"\n",
                    twice =
                        patterns + mlp +
                        "up_proj\" = \"colwise\"\n\"model.layers.1.mlp.*_proj\" = \"colwise\"\n",
                    router = patterns + mlp + "gate\" = \"colwise\"\n",
                    experts = patterns + mlp + "experts\" = \"colwise\"\n",
                    nowhere = patterns + attention + "nowhere\" = \"colwise\"\n",
                    head_alone = patterns + "\"lm_head\" = \"colwise\"\n",
                    tied_apart =
                        patterns +
                        "\"lm_head\" = \"colwise\"\n\"model.embed_tokens\" = \"colwise_rep\"\n",
                    part = patterns + "\"model.layers.*.*_layernorm\" = \"sequence_parallel\"\n" +
                           attention + "q_proj\" = \"colwise\"\n";
  for (const Row& row : std::vector<Row>{
           Row("heads", "tp_size = 4\n", 4, 3, "E0308", "distributed.tp_size",
               {"2 key-value heads", "set distributed.tp_size = 2"}, kLlama, 6),
           Row("no data", "strategy = \"ddp\"\ntp_size = 2\n", 2, 3, "E0306", "distributed.tp_size",
               {"ddp", "set distributed.tp_size = 1"}),
           Row("ddp, sequence", "strategy = \"ddp\"\nsequence_parallel = true\n", 2, 2, "E0212",
               "distributed.sequence_parallel", {"set distributed.sequence_parallel = false"}),
           Row("asynchronous", "tp_size = 2\nenable_async_tensor_parallel = true\n", 2, 2, "E0208",
               "distributed.enable_async_tensor_parallel",
               {"set distributed.sequence_parallel = true",
                "set distributed.enable_async_tensor_parallel = false"}),
           Row("unknown plan", "tp_size = 2\ntp_plan = \"bose\"\n", 2, 2, "E0215",
               "distributed.tp_plan",
               {"base, llama_nemotron_super_tp_plan, own", "set distributed.tp_plan = \"base\""}),
           Row("unknown style", sideways.c_str(), 2, 2, "E0216", "distributed.tp_plan.lm_head",
               {"colwise, rowwise, colwise_rep"}),
           Row("a norm cut by columns", on_norm.c_str(), 2, 3, "E0311", "distributed.tp_plan",
               {"model.norm", "Linear and Embedding only"}),
           Row("two styles", twice.c_str(), 2, 3, "E0311", "distributed.tp_plan",
               {"model.layers.1.mlp.up_proj", "model.layers.*.mlp.up_proj",
                "remove one of the two patterns"}),
           Row("tied, head alone", head_alone.c_str(), 2, 3, "E0311", "distributed.tp_plan",
               {"share one weight", "rowwise_rep"}, kLlama, 4, 2, true),
           Row("tied, cut differently", tied_apart.c_str(), 2, 3, "E0311", "distributed.tp_plan",
               {"by vocabulary", "by width"}, kLlama, 4, 2, true),
           Row("a part of the sequence", part.c_str(), 2, 3, "E0311", "distributed.tp_plan",
               {"k_proj has no style", "sees only a part of the sequence"}),
           Row("experts, sequence", "tp_size = 2\nsequence_parallel = true\n", 2, 2, "E0212",
               "distributed.sequence_parallel", {"set distributed.sequence_parallel = false"},
               kExperts),
           Row("experts, asynchronous",
               "tp_size = 2\nsequence_parallel = true\nenable_async_tensor_parallel = true\n", 2, 2,
               "E0212", "distributed.sequence_parallel", {"routers need whole tokens"}, kExperts),
           Row("experts, empty plan", "tp_size = 2\n[distributed.tp_plan]\n", 2, 3, "E0311",
               "distributed.tp_plan", {"must not be empty"}, kExperts),
           Row("experts, their router", router.c_str(), 2, 3, "E0311", "distributed.tp_plan",
               {"ep_size"}, kExperts),
           Row("experts themselves", experts.c_str(), 2, 3, "E0311", "distributed.tp_plan",
               {"ep_size"}, kExperts),
           Row("experts, no module", nowhere.c_str(), 2, 3, "E0311", "distributed.tp_plan",
               {"matches no module"}, kExperts),
       }) {
    INFO(std::string(row.name));
    // A table of patterns ends the file's [distributed]; data comes last.
    std::string text = std::string(row.distributed) + kMock;
    Row whole = row;
    whole.distributed = text.c_str();
    std::string file = write(whole), ranks = std::to_string(row.ranks);
    // What each verb asks first is the same: one row shows it.
    const bool all = std::string(row.name) == "heads";
    for (std::string verb : {"plan", "validate"}) {
      if (!all && verb == "plan") continue;
      Ran ran = run(verb + " '" + file + "' --world-size " + ranks + " --json");
      INFO(verb, "\n", ran.out);
      CHECK(ran.status == row.status);
      const json::object error = json::parse(ran.out).as_object().at("error").as_object();
      CHECK(std::string(error.at("code").as_string()) == row.code);
      CHECK(std::string(error.at("key").as_string()) == row.key);
      CHECK(!error.at("help").as_array().empty());
      for (const std::string& words : row.says) {
        std::string escaped = json::serialize(words);
        CHECK_MESSAGE(ran.says(escaped.substr(1, escaped.size() - 2)), words);
      }
    }
    if (!all) continue;
    Ran train = run("train '" + file + "' --nproc " + ranks, "2>&1");
    INFO(train.out);
    CHECK(train.status == row.status);
    CHECK(train.says(row.code));
    CHECK(!fs::exists(folder() / "runs"));  // nothing was begun
  }
}

TEST_CASE(
    "samples that do not divide by tp are refused under sequence parallelism, with the lengths "
    "that do") {
  struct Length {
    const char *tables, *key;
    std::vector<std::string> helps;
    bool valid = false;
  };
  const std::string head = "tp_size = 2\nsequence_parallel = true\n",
                    off = "set distributed.sequence_parallel = false";
  for (const Length& l : std::vector<Length>{
           {"[dataset]\nkind = \"mock\"\nseq_len = 33\n",
            "dataset.seq_len",
            {"set dataset.seq_len = 32", "set dataset.seq_len = 34", off}},
           {"[dataset]\nkind = \"mock\"\nseq_len = 1\n",
            "dataset.seq_len",
            {"set dataset.seq_len = 2", off}},
           {"[dataset]\nkind = \"mock\"\nseq_len = 32\n[validation_dataset]\nkind = "
            "\"mock\"\nseq_len = 31\n",
            "validation_dataset.seq_len",
            {"set validation_dataset.seq_len = 30", "set validation_dataset.seq_len = 32", off}},
           {"[dataset]\nkind = \"mock\"\nseq_len = 32\n", "", {}, true}}) {
    INFO(l.tables);
    std::string text = head + l.tables;
    Row row{"", text.c_str(), 2, 3, "E0316", l.key, {}};
    std::string file = write(row);
    for (std::string verb : {"plan", "validate"}) {
      Ran ran = run(verb + " '" + file + "' --world-size 2 --json");
      INFO(verb, "\n", ran.out);
      CHECK(ran.status == (l.valid ? 0 : 3));
      if (l.valid) continue;
      const json::object error = json::parse(ran.out).as_object().at("error").as_object();
      CHECK(std::string(error.at("code").as_string()) == "E0316");
      CHECK(std::string(error.at("key").as_string()) == l.key);
      CHECK(error.at("line").is_int64());
      CHECK(std::string(error.at("message").as_string()).find("distributed.tp_size = 2") !=
            std::string::npos);
      std::vector<std::string> helps;
      for (const json::value& help : error.at("help").as_array()) {
        helps.emplace_back(help.as_string());
        Ran again = run(verb + " '" + file + "' --world-size 2 --set " + [&] {
          std::string set = helps.back().substr(4);
          set.erase(set.find(" = "), 1).erase(set.find("= ") + 1, 1);
          return set;
        }());
        CHECK_MESSAGE(again.status == 0, helps.back());
      }
      CHECK(helps == l.helps);
    }
    if (l.valid) continue;
    Ran train = run("train '" + file + "' --nproc 2", "2>&1");
    CHECK(train.status == 3);
    CHECK(train.says("E0316"));
    // Without sequence parallelism any length will do; so it will for generating, which pads.
    CHECK(run("plan '" + file + "' --world-size 2 --set distributed.sequence_parallel=false")
              .status == 0);
  }
}

TEST_CASE("each pattern of a custom plan that matches nothing is reported") {
  std::string text = std::string(
                         "tp_size = 2\n[distributed.tp_plan]\n\"model.layers.*.mlp.up_prj\" = "
                         "\"colwise\"\n\"lm_heads\" = \"colwise\"\n") +
                     kMock;
  std::string file = write({"", text.c_str(), 2, 0, "", "", {}});
  for (std::string verb : {"plan", "validate"}) {
    Ran ran = run(verb + " '" + file + "' --world-size 2", "2>&1 >/dev/null");
    INFO(verb, "\n", ran.out);
    CHECK(ran.status == 0);
    CHECK(ran.says("\"model.layers.*.mlp.up_prj\" of the tensor-parallel plan matches no module"));
    CHECK(ran.says("\"lm_heads\" of the tensor-parallel plan matches no module"));
  }
}

TEST_CASE("a plan that would combine a part with a whole can be looked at, but not trained with") {
  std::string text =
      std::string(
          "tp_size = 2\n[distributed.tp_plan]\n\"model.layers.*.self_attn.q_proj\" = \"colwise\"\n"
          "\"model.layers.*.self_attn.o_proj\" = \"rowwise\"\n") +
      kMock;
  std::string file = write({"", text.c_str(), 2, 0, "", "", {}});
  Ran plan = run("plan '" + file + "' --world-size 2", "2>&1");
  CHECK(plan.status == 0);
  CHECK(plan.says("train refuses this plan"));
  for (const Ran& refused : {run("validate '" + file + "' --world-size 2", "2>&1"),
                             run("train '" + file + "' --nproc 2", "2>&1")}) {
    INFO(refused.out);
    CHECK(refused.status == 3);
    CHECK(refused.says("E0311"));
    CHECK(refused.says("a rank would combine a part with a whole"));
  }
  CHECK(!fs::exists(folder() / "runs"));
}

TEST_CASE("plan says what sequence parallelism saves, as a picture and as numbers") {
  for (const char* own : {"", "tp_plan = \"base\"\n"}) {
    std::string text = std::string("tp_size = 2\n") + own + kMock;
    Row row{"", text.c_str(), 2, 0, "", "", {}};
    std::string command =
        "plan '" + write(row) + "' --world-size 2 --set distributed.sequence_parallel=";
    Ran off = run(command + "false"), on = run(command + "true");
    INFO(off.out, on.out);
    CHECK(off.says("sequence parallelism off"));
    CHECK(off.says("sequence_parallel = true would save"));
    CHECK(on.says("sequence parallelism on"));
    CHECK(on.says("sequence_parallel = true saves"));
    json::object a = json::parse(run(command + "false --json").out).as_object(),
                 b = json::parse(run(command + "true --json").out).as_object();
    json::object with = b.at("activations").as_object(), without = a.at("activations").as_object();
    CHECK(without.at("sequence_parallel") == false);
    CHECK(with.at("sequence_parallel") == true);
    for (const char* key : {"bytes_with_sequence_parallel", "bytes_without_sequence_parallel"})
      CHECK(with.at(key) == without.at(key));
    CHECK(with.at("bytes_with_sequence_parallel") == b.at("bytes").as_object().at("activations"));
    CHECK(with.at("bytes_without_sequence_parallel") ==
          a.at("bytes").as_object().at("activations"));
    // Norms of two layers and the final one, 96 floats a token each, on half of 16 tokens.
    CHECK(a.at("bytes").as_object().at("activations").as_int64() -
              b.at("bytes").as_object().at("activations").as_int64() ==
          5 * 96 / 2 * 16 * 2);
  }
}
