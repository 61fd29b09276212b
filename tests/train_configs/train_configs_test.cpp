// The ready configurations of ddp and fsdp2 train as they are, and models of bytes write what they
// have learned.
#include <cmath>
#include <set>

#include "trained.h"

namespace {

// The corpus of the quickstart, cut to two steps of small batches.
const std::string kQuick =
    "configs/quickstart.toml --set step_scheduler.max_steps=2 --set "
    "step_scheduler.global_batch_size=4 "
    "--set step_scheduler.local_batch_size=2 --set dataset.seq_len=64 --set "
    "validation_dataset.seq_len=64 "
    "--set 'dataset.path=" MESHWRIGHT_TORCH_INCLUDE
    "/c10/*/[a-sA-S]*.h' "
    "--set 'validation_dataset.path=" MESHWRIGHT_TORCH_INCLUDE "/c10/*/[t-zT-Z]*.h' ";

}  // namespace

TEST_CASE("the ready configurations train as they are") {
  struct Row {
    const char *file, *name;
    int ranks;
  };
  for (const Row& row :
       {Row{"ddp_cpu", "ddp", 2}, Row{"first_fsdp2_cpu", "fsdp2", 2}, Row{"hsdp_cpu", "hsdp", 4},
        Row{"tp_cpu", "tp", 4}, Row{"megatron_fsdp_cpu", "megatron_fsdp", 2},
        Row{"experts_cpu", "experts", 2}, Row{"context_cpu", "context", 2},
        Row{"pipeline_cpu", "pipeline", 2}, Row{"pipeline_v_cpu", "pipeline_v", 4}}) {
    std::string file = row.file;
    CAPTURE(file);
    Trained run = train("configs/" + file + ".toml --nproc " + std::to_string(row.ranks) +
                            " --set step_scheduler.max_steps=2",
                        row.name);
    INFO(run.out);
    CHECK(run.status == 0);
    REQUIRE(run.losses.size() == 2);
    // A vocabulary of 256, and first weights that know nothing. Tokens are random, but for bytes of
    // a text, of which a step learns something.
    CHECK(run.losses.front() == doctest::Approx(std::log(256.0)).epsilon(0.05));
    CHECK(run.losses.back() < 1.05 * std::log(256.0));
    CHECK(run.losses.back() > 0.9 * std::log(256.0));
    CHECK(run.out.find("done: 2 steps") != std::string::npos);
  }
}

TEST_CASE("the resolved configuration of a run starts the same run again") {
  Trained first = train(
              "configs/hsdp_cpu.toml --nproc 4 --set step_scheduler.max_steps=2 --set "
              "lr_scheduler.lr_warmup_steps=1 --set optimizer.lr=1e-5",
              "resolved_first"),
          again = train(kRuns + "/resolved_first/config.resolved.toml --nproc 4", "resolved_again");
  INFO(first.out, again.out);
  REQUIRE(first.status == 0);
  REQUIRE(again.status == 0);
  check_equal(again.losses, first.losses);
  CHECK(again.rates == first.rates);
  CHECK(again.out.find("notice") == std::string::npos);
  CHECK(again.out.find("warning") == std::string::npos);
}

TEST_CASE("the quickstart's model has the same losses and writes the same text on two ranks" *
          doctest::test_suite("whole")) {
  const std::string sampled = kQuick + "--sample 40 --prompt 'int main' ";
  Trained alone = train(sampled, "alone");
  INFO(alone.out);
  REQUIRE(alone.status == 0);
  CHECK(alone.losses.size() == 2);
  CHECK(alone.validation.size() == 1);
  CHECK(alone.sample.size() == 48);
  CHECK(alone.sample.starts_with("int main"));
  CHECK(alone.out.find("a sample, temperature 0.7:\n\nint main") != std::string::npos);
  for (const char* layout : {"distributed.strategy=megatron_fsdp",
                             "distributed.strategy=fsdp2 --set "
                             "distributed.tp_size=2 --set "
                             "distributed.sequence_parallel=true"}) {
    CAPTURE(layout);
    Trained run = train(sampled + "--nproc 2 --set " + layout, "two");
    INFO(run.out);
    REQUIRE(run.status == 0);
    check_equal(run.losses, alone.losses);
    check_equal(run.validation, alone.validation);
    CHECK(run.sample == alone.sample);
  }
}

TEST_CASE("dropout repeats with the seed, and follows it") {
  fs::create_directories(kRuns);
  std::string model = kRuns + "/dropout.json";
  std::ofstream(model)
      << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 64,
    "initializer_range": 0.5, "attention_dropout": 0.5})";
  const std::string job =
      "configs/first_fsdp2_cpu.toml --nproc 2 --set step_scheduler.max_steps=3 --set "
      "step_scheduler.global_batch_size=4 "
      "--set step_scheduler.local_batch_size=2 --set dataset.seq_len=16 --set model.config=" +
      model;
  Trained first = train(job, "dropout_first"), again = train(job, "dropout_again");
  INFO(first.out, again.out);
  REQUIRE(first.status == 0);
  REQUIRE(again.status == 0);
  CHECK(first.losses.size() == 3);
  CHECK(first.losses == again.losses);
  // Without dropout the curve is another one: it did run.
  std::string text = contents(model);
  std::ofstream(model) << text.replace(text.rfind("0.5"), 3, "0.0");
  CHECK(train(job, "dropout_none").losses != first.losses);
}

TEST_CASE("a small learning rate falls to zero, because min_lr is 0 unless somebody sets it") {
  // By every style: engine/train/step/tests/schedule_test.cpp.
  const Trained run = train(
      "configs/first_fsdp2_cpu.toml --set step_scheduler.max_steps=4 --set "
      "step_scheduler.global_batch_size=2 "
      "--set step_scheduler.local_batch_size=2 --set dataset.seq_len=16 --set optimizer.lr=1e-5 "
      "--set lr_scheduler.lr_warmup_steps=1 --set lr_scheduler.lr_decay_style=cosine",
      "low_rate");
  INFO(run.out);
  REQUIRE(run.status == 0);
  REQUIRE(run.rates.size() == 4);
  CHECK(run.rates.front() == 1e-5);
  CHECK(run.rates.back() == 0);
}

TEST_CASE("a temperature of 0 repeats what is likeliest, a higher one does not") {
  Trained greedy = train(kQuick +
                             "--sample 60 --temperature 0 --set optimizer.lr=1e-2 --set "
                             "lr_scheduler.lr_warmup_steps=0",
                         "greedy");
  Trained free = train(kQuick +
                           "--sample 60 --temperature 1 --set optimizer.lr=1e-2 --set "
                           "lr_scheduler.lr_warmup_steps=0",
                       "free");
  INFO(greedy.out, free.out);
  REQUIRE(greedy.status == 0);
  REQUIRE(free.status == 0);
  // After two steps only the frequency of bytes is known.
  std::set<char> few(greedy.sample.begin(), greedy.sample.end()),
      many(free.sample.begin(), free.sample.end());
  CHECK(few.size() < 8);
  CHECK(many.size() > 12);
}
