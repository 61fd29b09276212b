// Configurations of other programs: what is carried over, what is guessed, what is left, and that
// nothing makes the readers fail.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "engine/config/config.h"
#include "engine/config/migrate.h"
#include "plugins/fully_sharded/options.h"

namespace migrate_test {

using namespace meshwright;
using namespace meshwright::config;

namespace {

std::vector<StrategySchema> strategies() {
  return {{"fsdp2", {}, make_schema("distributed.fsdp2", "fsdp2", kFullyShardedOptions)}};
}

constexpr const char* kTitan = R"([job]
dump_folder = "./outputs"
[model]
name = "llama3"
hf_assets_path = "./assets/hf/Llama-3.1-8B"
[optimizer]
name = "AdamW"
lr = 3e-4
beta2 = 0.98
[lr_scheduler]
warmup_steps = 100
decay_type = "cosine"
min_lr_factor = 0.1
[training]
local_batch_size = 2
seq_len = 8192
max_norm = 0.5
steps = 1000
dataset = "c4"
mixed_precision_param = "bfloat16"
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = -1
tensor_parallel_degree = 4
fsdp_reshard_after_forward = "never"
pipeline_parallel_schedule = "Interleaved1F1B"
context_parallel_load_balancer = "headtail"
[checkpoint]
enable = true
interval = 500
keep_latest_k = 0
async_mode = "async"
[activation_checkpoint]
mode = "full"
[compile]
enable = true
[metrics]
enable_wandb = false
[comm]
train_timeout_seconds = 300
)";

constexpr const char* kAutomodel = R"(# a recipe
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler:
  global_batch_size: 512
  local_batch_size: 8
  ckpt_every_steps: 500
  val_every_steps: 100  # steps
  num_epochs: 1
  max_steps: 9500
dist_env: {backend: nccl, timeout_minutes: 10}
rng:
  _target_: nemo_automodel.components.training.rng.StatefulRNG
  seed: 1111
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: meta-llama/Llama-3.2-1B
  torch_dtype: bf16
checkpoint:
  enabled: true
  save_consolidated: false
distributed:
  strategy: fsdp2
  dp_size: none
  tp_size: 2
  activation_checkpointing: True
  defer_fsdp_grad_sync: false
  pipeline:
    pp_schedule: interleaved1f1b
    pp_microbatch_size: 4
  moe:
dataset: &data
  _target_: nemo_automodel.components.datasets.llm.megatron_dataset.MegatronPretraining
  paths: /data/text_document
  seq_length: 1024
optimizer:
  _target_: torch.optim.Adam
  betas: [0.9, 0.999]
  lr: 1.0e-5
  weight_decay: 0
lr_scheduler:
  min_lr: 1e-6
wandb:
  project: mine
teleport: true
)";

const Migration::Line* find(const std::vector<Migration::Line>& lines, const std::string& key) {
  auto found =
      std::find_if(lines.begin(), lines.end(), [&](const auto& line) { return line.key == key; });
  return found == lines.end() ? nullptr : &*found;
}

// The result is read by the loader itself.
Config loaded(const Migration& migration) {
  Diagnostics diagnostics;
  LoadOptions options;
  options.file = "new.toml";
  Source source = Source::parse(migration.toml, options, diagnostics);
  Config config = resolve(source, strategies(), "fsdp2", diagnostics);
  for (const Error& error : diagnostics.errors()) FAIL_CHECK(error.what());
  return config;
}

std::string value(const Config& config, const std::string& table, const char* key) {
  return to_toml(config.table(table).value(key));
}

}  // namespace

TEST_CASE(
    "a configuration of torchtitan becomes one of ours, with its defaults, and every key is "
    "accounted for") {
  Migration done = migrate(kTitan, "llama3.toml", strategies());
  INFO(done.toml);
  CHECK(done.program == "torchtitan");
  Config config = loaded(done);
  struct Row {
    const char *table, *key, *value;
  };
  for (const Row& row :
       {Row{"run", "dir", "\"./outputs\""},
        {"model", "config", "\"./assets/hf/Llama-3.1-8B/config.json\""},
        {"optimizer", "name", "\"adamw\""},
        {"optimizer", "lr", "3e-04"},
        {"optimizer", "betas", "[0.9, 0.98]"},
        {"optimizer", "max_grad_norm", "0.5"},
        {"lr_scheduler", "lr_warmup_steps", "100"},
        {"lr_scheduler", "lr_decay_style", "\"cosine\""},
        {"lr_scheduler", "min_lr", "3e-05"},
        {"step_scheduler", "local_batch_size", "2"},
        {"step_scheduler", "global_batch_size", "4"},  // a guess: the number of ranks is not known
        {"step_scheduler", "max_steps", "1000"},
        {"dataset", "seq_len", "8192"},
        {"distributed", "dp_replicate_size", "2"},
        {"distributed", "dp_size", "\"none\""},
        {"distributed", "tp_size", "4"},
        {"distributed", "activation_checkpointing", "\"full\""},
        {"distributed.fsdp2", "reshard_after_forward", "false"},
        {"distributed.pipeline", "pp_schedule", "\"Interleaved1F1B\""},
        {"checkpoint", "every_steps", "500"},
        {"checkpoint", "async", "true"},
        {"dist_env", "timeout_minutes", "5"}}) {
    CAPTURE(row.table);
    CAPTURE(row.key);
    CHECK(value(config, row.table, row.key) == row.value);
  }
  for (const char* key :
       {"model.name", "training.dataset", "parallelism.context_parallel_load_balancer",
        "checkpoint.keep_latest_k", "compile.enable"}) {
    CAPTURE(key);
    CHECK(find(done.left, key) != nullptr);
  }
  CHECK(find(done.left, "metrics.enable_wandb") == nullptr);  // switched off there, absent here
  CHECK(find(done.left, "compile.enable")->line == 36);
  for (const char* key : {"model.hf_assets_path", "training.global_batch_size"}) {
    CAPTURE(key);
    CHECK(find(done.guessed, key) != nullptr);
  }
  CHECK(find(done.carried, "training.steps")->text == "step_scheduler.max_steps = 1000");
  CHECK(find(done.missing, "dataset.path") != nullptr);
  CHECK(find(done.missing, "model.config") == nullptr);
  // What the file leaves to torchtitan is torchtitan's default.
  Config bare = loaded(migrate("[training]\nsteps = 5\n", "a.toml", strategies()));
  CHECK(value(bare, "optimizer", "lr") == "8e-04");
  CHECK(value(bare, "dataset", "seq_len") == "2048");
  CHECK(value(bare, "lr_scheduler", "lr_decay_style") == "\"linear\"");
  CHECK(value(bare, "checkpoint", "every_steps") == "0");
  // Sizes that are all given make the batch.
  Config sized = loaded(
      migrate("[training]\nlocal_batch_size = 3\n[parallelism]\ndata_parallel_shard_degree = 4\n",
              "a.toml", strategies()));
  CHECK(value(sized, "step_scheduler", "global_batch_size") == "12");
  CHECK(value(sized, "distributed", "dp_size") == "4");
}

TEST_CASE("a configuration of Automodel becomes one of ours, and every key is accounted for") {
  Migration done = migrate(kAutomodel, "llama.yaml", strategies());
  INFO(done.toml);
  CHECK(done.program == "Automodel");
  Config config = loaded(done);
  struct Row {
    const char *table, *key, *value;
  };
  for (const Row& row : {Row{"run", "seed", "1111"},
                         {"model", "pretrained", "\"models/Llama-3.2-1B\""},
                         {"model", "torch_dtype", "\"bf16\""},
                         {"dist_env", "backend", "\"nccl\""},
                         {"dist_env", "timeout_minutes", "10"},
                         {"step_scheduler", "global_batch_size", "512"},
                         {"step_scheduler", "max_steps", "9500"},
                         {"checkpoint", "every_steps", "500"},
                         {"checkpoint", "export", "\"none\""},
                         {"distributed", "tp_size", "2"},
                         {"distributed", "dp_size", "\"none\""},
                         {"distributed.fsdp2", "defer_fsdp_grad_sync", "false"},
                         {"distributed.pipeline", "pp_schedule", "\"interleaved1f1b\""},
                         {"distributed.pipeline", "pp_microbatch_size", "4"},
                         {"distributed.pipeline", "pp_batch_size", "8"},
                         {"dataset", "kind", "\"megatron\""},
                         {"dataset", "path", "\"/data/text_document\""},
                         {"dataset", "seq_len", "1024"},
                         {"optimizer", "name", "\"adamw\""},
                         {"optimizer", "lr", "1e-05"},
                         {"optimizer", "weight_decay", "0"},
                         {"lr_scheduler", "min_lr", "1e-06"}}) {
    CAPTURE(row.table);
    CAPTURE(row.key);
    CHECK(value(config, row.table, row.key) == row.value);
  }
  for (const char* key : {"recipe", "step_scheduler.num_epochs", "step_scheduler.val_every_steps",
                          "wandb.project", "teleport"}) {
    CAPTURE(key);
    CHECK(find(done.left, key) != nullptr);
  }
  CHECK(find(done.left, "teleport")->line == 44);
  const Migration::Line* model = find(done.guessed, "model.pretrained_model_name_or_path");
  REQUIRE(model != nullptr);
  CHECK(model->text.find("hf download meta-llama/Llama-3.2-1B --local-dir models/Llama-3.2-1B") !=
        std::string::npos);
  CHECK(find(done.guessed, "optimizer._target_") != nullptr);  // Adam is not AdamW
  CHECK(done.missing.empty());
}

TEST_CASE("a value that is not taken here is left with the loader's words, and the rest is kept") {
  Migration done = migrate(
      "[training]\nsteps = -3\nseq_len = \"long\"\ndtype = \"float9\"\nlocal_batch_size = "
      "2\n[run]\nname = \"${HOME}\"\n",
      "a.toml", strategies());
  loaded(done);
  CHECK(find(done.left, "training.steps")->text.find("at least 0") != std::string::npos);
  CHECK(find(done.left, "training.seq_len")->text.find("an integer") != std::string::npos);
  CHECK(find(done.left, "training.dtype")->text.find("not a dtype") != std::string::npos);
  CHECK(find(done.carried, "training.local_batch_size") != nullptr);
}

TEST_CASE("a damaged file of another program is refused with its place") {
  struct Row {
    const char *name, *text;
    int line, column;
    const char* says;
  };
  std::string deep = "a: " + std::string(600, '[') + "\nmodel: {a: 1}\n",
              nested = "model: " + std::string(40, '[') + std::string(40, ']'),
              bomb = "a: &a [x, x]\n";
  for (char c = 'b'; c < 'z'; ++c)
    bomb += std::string(1, c) + ": &" + c + " [*" + char(c - 1) + ", *" + char(c - 1) + "]\n";
  std::string large = "model: {a: 1}\n" + std::string(1 << 20, '#'), self = "model: &m\n  a: *m\n";
  for (const Row& row : {Row{"a.toml", "[training\nsteps = 1\n", 1, 0, "no valid TOML"},
                         {"a.toml", "[training]\nsteps = \n", 2, 0, "no valid TOML"},
                         {"a.toml", "a = 1\n", 1, 1, "none of the tables that torchtitan has"},
                         {"a.toml", "[training]\nsteps = 1\n[step_scheduler]\nmax_steps = 1\n", 0,
                          0, "a configuration of Meshwright already"},
                         {"a.yaml", "model:\n  a: [1, 2\nb: 3\n", 0, 0, "no valid YAML"},
                         {"a.yaml", "model:\n\ta: 1\n", 2, 0, "no valid YAML"},
                         {"a.yaml", "model: *nobody\n", 1, 0, "no valid YAML"},
                         {"a.yaml", "- model\n", 1, 1, "a mapping is expected"},
                         {"a.yaml", "", 0, 0, "a mapping is expected"},
                         {"a.yaml", "model: {a: 1, a: 2}\n", 1, 15, "stands twice"},
                         {"a.yaml", "? [model]\n: 1\n", 1, 3, "no plain word"},
                         {"a.yaml", "b: 1\n", 1, 1, "none of the tables that Automodel has"},
                         {"a.yaml", "model: \"\xff\"\n", 0, 0, "not UTF-8"},
                         {"a.yaml", deep.c_str(), 0, 0, "a.yaml"},
                         {"a.yaml", nested.c_str(), 1, 0, "nested deeper than 32 levels"},
                         {"a.yaml", bomb.c_str(), 0, 0, "more than 20000 values"},
                         {"a.yaml", self.c_str(), 0, 0, "a.yaml"},
                         {"a.yaml", large.c_str(), 0, 0, "larger than"},
                         {"a.json", "{}", 0, 0, "ends in .toml, one of Automodel in .yaml"}}) {
    INFO(std::string(row.text).substr(0, 60));
    try {
      migrate(row.text, row.name, strategies());
      FAIL_CHECK("it was read");
    } catch (const Error& error) {
      INFO(error.what());
      CHECK(code_string(error.code()) == "E0219");
      CHECK(exit_status(error.code()) == 2);
      CHECK(error.message().find(row.says) != std::string::npos);
      if (row.line > 0) CHECK(error.origin().line == row.line);
      if (row.column > 0) CHECK(error.origin().column == row.column);
    }
  }
}

TEST_CASE(
    "a class that names a strategy chooses it, and one that no strategy is named for is left and "
    "listed") {
  Migration known = migrate(
      "step_scheduler: {max_steps: 3}\ndistributed:\n  _target_: "
      "nemo_automodel.components.distributed.fsdp2.FSDP2Manager\n",
      "a.yml", strategies());
  CHECK(known.toml.find("strategy = \"fsdp2\"") != std::string::npos);
  Migration unknown = migrate(
      "step_scheduler: {max_steps: 3}\ndistributed:\n  _target_: their.own.TeleportManager\n",
      "a.yml", strategies());
  CHECK(find(unknown.left, "distributed._target_") != nullptr);
  CHECK(unknown.toml.find("strategy = ") == std::string::npos);
}

TEST_CASE("YAML's forms of values, merge keys and quotes") {
  Migration done = migrate(
      "base: &base\n  lr: 1e-3\n  eps: 1.5e-8\noptimizer:\n  <<: *base\n  lr: "
      "+2.5E-4\nstep_scheduler: {max_steps: \"12\", "
      "local_batch_size: 0x10}\n"
      "distributed:\n  sequence_parallel: on\n  tp_size: ~\n  dp_size:\nrun: {name: 'yes'}\n",
      "a.yml", strategies());
  Config config = loaded(done);
  INFO(done.toml);
  CHECK(value(config, "optimizer", "lr") == "0.00025");
  CHECK(value(config, "optimizer", "eps") == "1.5e-08");
  CHECK(value(config, "distributed", "sequence_parallel") == "true");
  CHECK(value(config, "distributed", "tp_size") == "\"none\"");
  CHECK(value(config, "run", "name") == "\"yes\"");
  CHECK(find(done.left, "step_scheduler.max_steps") != nullptr);         // a string
  CHECK(find(done.left, "step_scheduler.local_batch_size") != nullptr);  // no number in decimal
}

TEST_CASE("what another file says cannot leave the comment it is quoted in") {
  std::string name(200, 'x');
  for (size_t i = 0; i < name.size(); i += 3) name.replace(i, 1, "\u00e9");
  Migration done = migrate(
      "model:\n  pretrained_model_name_or_path: \"a/b\\n[run]\\nname = 1\"\n  "
      "\"k\\n[optimizer]\\nlr = 9\": \"" +
          name + "\"\nx: \"\\n\\e\"\n",
      "a.yaml", strategies());
  INFO(done.toml);
  Config config = loaded(done);
  CHECK(value(config, "run", "name") == "\"first\"");
  CHECK(value(config, "optimizer", "lr") == "3e-04");
}

TEST_CASE("no bytes make a migration crash, and every result is a configuration") {
  std::mt19937 random(5);
  const std::string letters = "{}[]:,-?&*!|>'\"%@`#\n\t 0123456789aemx.<";
  int refused = 0, made = 0;
  for (int i = 0; i < 1500; ++i) {
    bool titan = i % 2 == 0;
    std::string text = titan ? kTitan : kAutomodel;
    for (uint64_t k = 0; k < 1 + random() % 6; ++k) {
      size_t at = random() % text.size();
      if (random() % 3 == 0)
        text.erase(at, 1 + random() % 20);
      else
        text[at] = letters[random() % letters.size()];
    }
    INFO(text);
    try {
      loaded(migrate(text, titan ? "a.toml" : "a.yaml", strategies()));
      ++made;
    } catch (const Error& error) {
      CHECK(code_string(error.code()) == "E0219");
      ++refused;
    }
  }
  CHECK(refused > 100);
  CHECK(made > 100);
}

}  // namespace migrate_test
