// The memory of activations through whole runs.
#include "trained.h"

namespace {

std::string sets(const std::vector<std::string>& all) {
  std::string out;
  for (const std::string& set : all) out += " --set " + set;
  return out;
}

}  // namespace

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
  auto use = [&](const std::string& strategy, const std::string& mode) {
    std::string all = base + sets({"distributed.strategy=" + strategy,
                                   "distributed.activation_checkpointing=" + mode});
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
    const Use all = use(strategy, "none");
    for (const char* mode : {"full", "selective"}) {
      CAPTURE(mode);
      Use less = use(strategy, mode);
      double planned = all.planned - less.planned, measured = all.measured - less.measured;
      MESSAGE(strategy, " ", mode, ": plan ", less.planned / all.planned, " of none; saves ",
              planned, " planned, ", measured, " measured");
      // What is saved by not keeping it; the rest (weights, optimizer) is the same.
      CHECK(measured == doctest::Approx(planned).epsilon(0.1).scale(all.planned * 0.1));
    }
  }
}
