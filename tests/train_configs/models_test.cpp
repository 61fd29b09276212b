// Models whose layers or positions differ from Llama's, and the memory of activations, through
// whole runs.
#include "sdk/comm/tests/sampled.h"
#include "trained.h"

namespace {

std::string sets(const std::vector<std::string>& all) {
  std::string out;
  for (const std::string& set : all) out += " --set " + set;
  return out;
}

}  // namespace

TEST_CASE(
    "Phi and YaRN train alike under every strategy, go on from a checkpoint and come back out as "
    "they went in" *
    doctest::test_suite("whole")) {
  const std::vector<std::string> common = {
      "step_scheduler.global_batch_size=8", "step_scheduler.local_batch_size=2",
      "step_scheduler.max_steps=3",         "dataset.seq_len=32",
      "lr_scheduler.lr_warmup_steps=0",     "optimizer.lr=1e-2"};
  struct Layout {
    const char* name;
    int ranks;
    std::vector<std::string> more;
  };
  size_t number = 0;  // half: each model on every second layout
  for (const char* model : {"phi", "phi_normed", "qwen3_yarn"}) {
    size_t turn = number++;
    CAPTURE(model);
    const std::string base =
        "configs/first_fsdp2_cpu.toml --set model.config=none --set "
        "model.pretrained=" MESHWRIGHT_SOURCE_DIR "/tests/data/nets/" +
        std::string(model) + sets(common);
    Trained alone = train(base + " --set distributed.strategy=ddp", std::string(model) + "_alone");
    INFO(alone.out);
    REQUIRE(alone.status == 0);
    REQUIRE(alone.losses.size() == 3);
    CHECK(alone.losses[2] < alone.losses[0]);
    for (const Layout& layout :
         {Layout{"ddp", 2, {"distributed.strategy=ddp"}},
          Layout{"fsdp2", 2, {"distributed.activation_checkpointing=full"}},
          Layout{"tp", 2, {"distributed.tp_size=2"}},
          Layout{"sp",
                 4,
                 {"distributed.tp_size=2", "distributed.sequence_parallel=true",
                  "distributed.activation_checkpointing=selective"}},
          Layout{"megatron_fsdp", 2, {"distributed.strategy=megatron_fsdp"}}}) {
      if (!meshwright::sampled(turn++, 2)) continue;
      CAPTURE(layout.name);
      Trained run = train(base + sets(layout.more) + " --nproc " + std::to_string(layout.ranks),
                          std::string(model) + "_" + layout.name);
      INFO(run.out);
      REQUIRE(run.status == 0);
      check_equal(run.losses, alone.losses);
    }
    // Nothing is trained: what was read is saved and exported, bit for bit, and the checkpoint of
    // one layout continues on another.
    Trained kept =
        train(base + sets({"step_scheduler.max_steps=0", "checkpoint.export=final"}) + " --nproc 2",
              std::string(model) + "_kept");
    INFO(kept.out);
    REQUIRE(kept.status == 0);
    int status = 1;
    std::string difference = said(
        "checkpoint diff " + kRuns + "/" + model + "_kept/hf tests/data/nets/" + model, &status);
    INFO(difference);
    CHECK(status == 0);
    Trained again = train(
        base +
            sets({"distributed.tp_size=2",
                  "checkpoint.resume=" + kRuns + "/" + model + "_alone/checkpoints/step_00000003",
                  "step_scheduler.max_steps=4"}) +
            " --nproc 2",
        std::string(model) + "_again");
    INFO(again.out);
    CHECK(again.status == 0);
    REQUIRE(again.losses.size() == 1);
    CHECK(again.losses[0] < alone.losses[0]);
    std::string first = said(
        "generate " + kRuns + "/" + model + "_alone --tokens 1,2,3 --temperature 0 --max-new 8",
        &status);
    CHECK(status == 0);
    CHECK(first.starts_with("1,2,3,"));
  }
}

TEST_CASE("activations of a run are those of its plan, whatever the strategy recomputes" *
          doctest::test_suite("whole")) {
  const fs::path file = fs::path(kRuns) / "activations.json";
  fs::create_directories(kRuns);
  std::ofstream(file)
      << R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 64, "intermediate_size": 176,
    "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 1024})";
  const std::string base =
      "configs/first_fsdp2_cpu.toml --set model.config=" + file.string() +
      sets({"step_scheduler.global_batch_size=8", "step_scheduler.local_batch_size=8",
            "step_scheduler.max_steps=2", "dataset.seq_len=512"});
  struct Use {
    double planned = 0, measured = 0;
  };
  auto use = [&](const std::string& strategy, const std::string& mode, const std::string& scope) {
    std::string all = base + sets({"distributed.strategy=" + strategy,
                                   "distributed.activation_checkpointing=" + mode,
                                   "distributed.activation_checkpointing_scope=" + scope});
    int status = 1;
    std::string text = said("plan " + all + " --world-size 1 --json", &status);
    INFO(text);
    REQUIRE(status == 0);
    text.erase(0, text.find("{"));
    Trained run = train(all, "activations");
    INFO(run.out);
    REQUIRE(run.memory.size() == 2);  // the second has the states of the optimizer
    return Use{static_cast<double>(json::parse(text).at("bytes").at("activations").as_int64()),
               static_cast<double>(run.memory.back())};
  };
  for (const char* strategy : {"ddp", "fsdp2", "megatron_fsdp"}) {
    CAPTURE(strategy);
    const Use all = use(strategy, "none", "all");
    struct Row {
      const char *mode, *scope;
    };
    for (const Row& row : {Row{"full", "all"}, Row{"full", "language"}, Row{"selective", "all"},
                           Row{"full", "vision"}}) {
      CAPTURE(row.mode);
      CAPTURE(row.scope);
      Use less = use(strategy, row.mode, row.scope);
      double planned = all.planned - less.planned, measured = all.measured - less.measured;
      MESSAGE(strategy, " ", row.mode, " ", row.scope, ": plan ", less.planned / all.planned,
              " of none; saves ", planned, " planned, ", measured, " measured");
      // What is saved by not keeping it; the rest (weights, optimizer) is the same.
      CHECK(measured == doctest::Approx(planned).epsilon(0.1).scale(all.planned * 0.1));
    }
  }
}
