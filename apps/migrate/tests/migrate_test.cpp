// Configurations of other programs: what is carried over, what is guessed, what is left, and that
// nothing makes the readers fail. Long because most of it is rows of recipes and what becomes of
// them.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>

#include "apps/migrate/tests/migrated.h"

namespace migrate_test {

namespace {

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

}  // namespace

TEST_CASE(
    "a configuration of torchtitan becomes one of ours, with its defaults, and every key is "
    "accounted for") {
  Migration done = migrate(kTitan, "llama3.toml", strategies());
  CHECK(done.program == "torchtitan");
  check_values(done, {{"run.dir", "\"./outputs\""},
                      {"model.config", "\"./assets/hf/Llama-3.1-8B/config.json\""},
                      {"optimizer.name", "\"adamw\""},
                      {"optimizer.lr", "3e-04"},
                      {"optimizer.betas", "[0.9, 0.98]"},
                      {"optimizer.max_grad_norm", "0.5"},
                      {"lr_scheduler.lr_warmup_steps", "100"},
                      {"lr_scheduler.lr_decay_style", "\"cosine\""},
                      {"lr_scheduler.min_lr", "3e-05"},
                      {"step_scheduler.local_batch_size", "2"},
                      {"step_scheduler.global_batch_size",
                       "4"},  // a guess: the number of ranks is not known
                      {"step_scheduler.max_steps", "1000"},
                      {"dataset.seq_len", "8192"},
                      {"distributed.dp_replicate_size", "2"},
                      {"distributed.dp_size", "\"none\""},
                      {"distributed.tp_size", "4"},
                      {"distributed.activation_checkpointing", "\"full\""},
                      {"distributed.fsdp2.reshard_after_forward", "false"},
                      {"distributed.pipeline.pp_schedule", "\"Interleaved1F1B\""},
                      {"checkpoint.every_steps", "500"},
                      {"checkpoint.async", "true"},
                      {"dist_env.timeout_minutes", "5"}});
  for (const char* key : {"model.name", "training.dataset",
                          "parallelism.context_parallel_load_balancer", "compile.enable"})
    CHECK_MESSAGE(find(done.left, key) != nullptr, key);
  CHECK(find(done.left, "metrics.enable_wandb") == nullptr);  // switched off there, absent here
  CHECK(find(done.left, "compile.enable")->line == 36);
  // keep_latest_k = 0 keeps all, which keep_every does here.
  CHECK(says(done.guessed, "checkpoint.keep_latest_k", "checkpoint.keep_every = 500"));
  for (const char* key : {"model.hf_assets_path", "training.global_batch_size"})
    CHECK_MESSAGE(find(done.guessed, key) != nullptr, key);
  CHECK(find(done.carried, "training.steps")->text == "step_scheduler.max_steps = 1000");
  CHECK(find(done.missing, "dataset.path") != nullptr);
  CHECK(find(done.missing, "model.config") == nullptr);
  // What the file leaves to torchtitan is torchtitan's default.
  check_values(of_toml("[training]\nsteps = 5\n"), {{"optimizer.lr", "8e-04"},
                                                    {"dataset.seq_len", "2048"},
                                                    {"lr_scheduler.lr_decay_style", "\"linear\""},
                                                    {"checkpoint.every_steps", "0"}});
  // Sizes that are all given make the batch.
  check_values(
      of_toml("[training]\nlocal_batch_size = 3\n[parallelism]\ndata_parallel_shard_degree = 4\n"),
      {{"step_scheduler.global_batch_size", "12"}, {"distributed.dp_size", "4"}});
}

TEST_CASE("a configuration of Automodel becomes one of ours, and every key is accounted for") {
  Migration done = migrate(kAutomodel, "llama.yaml", strategies());
  CHECK(done.program == "Automodel");
  check_values(done, {{"run.seed", "1111"},
                      {"model.pretrained", "\"models/Llama-3.2-1B\""},
                      {"model.torch_dtype", "\"bf16\""},
                      {"dist_env.backend", "\"nccl\""},
                      {"dist_env.timeout_minutes", "10"},
                      {"step_scheduler.global_batch_size", "512"},
                      {"step_scheduler.max_steps", "9500"},
                      {"checkpoint.every_steps", "500"},
                      {"checkpoint.export", "\"none\""},
                      {"distributed.tp_size", "2"},
                      {"distributed.dp_size", "\"none\""},
                      {"distributed.fsdp2.defer_fsdp_grad_sync", "false"},
                      {"distributed.pipeline.pp_schedule", "\"interleaved1f1b\""},
                      {"distributed.pipeline.pp_microbatch_size", "4"},
                      {"distributed.pipeline.pp_batch_size", "8"},
                      {"dataset.kind", "\"megatron\""},
                      {"dataset.path", "\"/data/text_document\""},
                      {"dataset.seq_len", "1024"},
                      {"optimizer.name", "\"adamw\""},
                      {"optimizer.lr", "1e-05"},
                      {"optimizer.weight_decay", "0"},
                      {"lr_scheduler.min_lr", "1e-06"}});
  for (const char* key : {"recipe", "step_scheduler.num_epochs", "step_scheduler.val_every_steps",
                          "wandb.project", "teleport"})
    CHECK_MESSAGE(find(done.left, key) != nullptr, key);
  CHECK(find(done.left, "teleport")->line == 44);
  CHECK(says(done.guessed, "model.pretrained_model_name_or_path",
             "hf download meta-llama/Llama-3.2-1B --local-dir models/Llama-3.2-1B"));
  CHECK(find(done.guessed, "optimizer._target_") != nullptr);  // Adam is not AdamW
  CHECK(done.missing.empty());
}

TEST_CASE("what Automodel does where a recipe says nothing is written out, as a guess") {
  const std::string head =
      "model: {_target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained, "
      "pretrained_model_name_or_path: a/b}\noptimizer: {_target_: torch.optim.AdamW, lr: 1e-5}\n";
  struct Row {
    const char* text;
    std::vector<Expected> values;
  };
  for (const Row& row : std::vector<Row>{
           // No schedule: the rate is constant, without warm-up.
           {"step_scheduler: {max_steps: 300}\n",
            {{"lr_scheduler.lr_decay_style", "\"constant\"", true},
             {"lr_scheduler.lr_warmup_steps", "0", true},
             {"lr_scheduler.min_lr", "0", false},
             {"optimizer.betas", "[0.9, 0.999]", true},
             {"optimizer.weight_decay", "0.01", true},
             {"optimizer.lr", "1e-05", false},
             {"model.torch_dtype", "\"bfloat16\"", true},
             {"step_scheduler.global_batch_size", "32", true},
             {"step_scheduler.local_batch_size", "1", true},
             {"step_scheduler.max_steps", "300", true},  // its ten epochs are not carried
             {"checkpoint.every_steps", "100", true},
             {"checkpoint.keep_every", "100", true},
             {"checkpoint.export", "\"final\"", true},
             {"dist_env.timeout_minutes", "1", true}}},
           {"lr_scheduler:\nstep_scheduler: {num_epochs: 3, max_steps: null}\n",
            {{"lr_scheduler.lr_decay_style", "\"constant\"", true},
             {"step_scheduler.epochs", "3", false},
             {"step_scheduler.max_steps", "\"none\"", false}}},
           {"step_scheduler: {global_batch_size: 8}\n", {{"step_scheduler.epochs", "10", true}}},
           // Of a schedule only what it leaves out: a tenth of the steps, a hundredth of lr.
           {"lr_scheduler: {lr_decay_style: cosine}\nstep_scheduler: {max_steps: 300}\n",
            {{"lr_scheduler.lr_decay_style", "\"cosine\"", false},
             {"lr_scheduler.lr_warmup_steps", "30", true},
             {"lr_scheduler.min_lr", "1e-07", true}}},
           {"lr_scheduler: {lr_decay_style: linear, lr_warmup_steps: 0, min_lr: 0.0}\n"
            "step_scheduler: {max_steps: 300, num_epochs: null}\nmodel.x: 1\n",
            {{"lr_scheduler.lr_decay_style", "\"linear\"", false},
             {"lr_scheduler.lr_warmup_steps", "0", false},
             {"lr_scheduler.min_lr", "0", false},
             {"step_scheduler.max_steps", "300", false}}},
           {"lr_scheduler: {lr_decay_style: cosine, lr_decay_steps: 100, init_lr: 0.0, "
            "lr_warmup_steps: 7}\nstep_scheduler: {max_steps: 300}\n",
            {{"lr_scheduler.lr_decay_style", "\"cosine\"", true},  // ends earlier there
             {"lr_scheduler.lr_warmup_steps", "7", false}}},
           {"lr_scheduler: {lr_decay_style: WSD, wsd_decay_steps: 30, lr_wsd_decay_style: linear, "
            "max_lr: 2e-5}\nstep_scheduler: {max_steps: 300}\n",
            {{"lr_scheduler.lr_decay_style", "\"wsd\"", false}, {"optimizer.lr", "2e-05", false}}},
           {"checkpoint: {save_consolidated: true, max_recent_checkpoints: 4}\n",
            {{"checkpoint.export", "\"every\"", false},
             {"checkpoint.keep", "4", false},
             {"checkpoint.keep_every", "0", false}}},
           {"distributed: {tp_size: 2, enable_async_tensor_parallel: true}\nfp8: {enabled: true, "
            "recipe_name: tensorwise}\ndataloader: {num_workers: 2, shuffle: false}\n",
            {{"distributed.sequence_parallel", "true", true},
             {"model.float8_linear", "true", true},
             {"distributed.enable_async_tensor_parallel", "false", false},
             {"dataset.workers", "2", false},
             {"dataset.shuffle", "false", false}}}}) {
    INFO(row.text);
    check_values(of_yaml(head + row.text), row.values);
  }
}

TEST_CASE("adapters stay adapters, and rows of chats rows of chats") {
  Migration done = of_yaml(
      "peft: {_target_: x.PeftConfig, dim: 16, alpha: 64, dropout: 0.1, target_modules: "
      "[\"*q_proj\", "
      "\"*.v_proj\", o_proj]}\n"
      "dataset: {_target_: x.ChatDataset, path_or_dataset_id: ./data/chats.jsonl, split: train, "
      "seq_length: 256, mask_history: true}\n"
      "validation_dataset: {_target_: x.ColumnMappedTextInstructionDataset, path_or_dataset_id: "
      "[/data/rows.jsonl], column_mapping: {question: prompt, answer: text}}\n"
      "step_scheduler: {max_steps: 4, ckpt_every_steps: 2}\npacked_sequence: "
      "{packed_sequence_size: "
      "0}\nloss_fn: {_target_: x.MaskedCrossEntropy}\n");
  check_values(done, {{"lora.r", "16", false},
                      {"lora.alpha", "64", false},
                      {"lora.dropout", "0.1", true},
                      {"lora.target_modules", "[\"q_proj\", \"v_proj\", \"o_proj\"]", false},
                      {"dataset.plugin", "\"jsonl\"", true},
                      {"dataset.path", "\"./data/chats.jsonl\"", false},
                      {"dataset.seq_len", "256", false},
                      {"dataset.jsonl.format", "\"messages\"", true},
                      {"dataset.jsonl.packing", "\"none\"", true},
                      {"dataset.jsonl.train_on", "\"last\"", false},
                      {"validation_dataset.path", "\"/data/rows.jsonl\"", false},
                      {"validation_dataset.jsonl.format", "\"prompt_completion\"", true},
                      {"validation_dataset.jsonl.fields",
                       "{\"completion\" = \"text\", \"prompt\" = \"prompt\"}", false},
                      {"validation_dataset.every_steps", "2", true}});
  CHECK(find(done.missing, "validation_dataset.num_batches") != nullptr);
  CHECK(find(done.left, "loss_fn._target_") == nullptr);  // the loss is the same

  Migration packed = of_yaml(
      "peft: {match_all_linear: true}\n"
      "dataset: {_target_: x.ChatDataset, path_or_dataset_id: some/hub, seq_length: 64}\n"
      "packed_sequence: {packed_sequence_size: 512}\nstep_scheduler: {max_steps: 4}\n"
      "model: {pretrained_model_name_or_path: /home/me/model}\n");
  check_values(packed, {{"lora.r", "8", true},
                        {"lora.target_modules", "\"all-linear\"", true},
                        {"model.pretrained", "\"/home/me/model\"", false},
                        {"dataset.seq_len", "512", false},
                        {"dataset.jsonl.packing", "\"sequential\"", true}});
  CHECK(says(packed.left, "dataset.path_or_dataset_id", "JSON Lines"));
  CHECK(find(packed.missing, "dataset.path") != nullptr);
  // What trains something else says so first.
  Migration other =
      of_yaml("recipe: TrainEagle3Recipe\nrecipe_args: {seq_length: 9}\noptimizer: {lr: 1}\n");
  CHECK(find(other.missing, "recipe") != nullptr);
  CHECK(find(other.missing, "lr_scheduler.lr_decay_style") != nullptr);
  CHECK(find(other.carried, "recipe_args.seq_length") == nullptr);
}

TEST_CASE("torchtitan's decays become the shapes that they are, and its older names their keys") {
  struct Row {
    const char *text, *style, *min_lr;
    bool guessed;
  };
  for (const Row& row :
       {Row{"decay_ratio = 0.8\ndecay_type = \"cosine\"\nwarmup_steps = 200\nmin_lr_factor = 0.1\n",
            "cosine", "1e-04", false},  // all that is left after the warm-up
        {"decay_ratio = 0.8\ndecay_type = \"cosine\"\nwarmup_steps = 300\n", "cosine", "0", false},
        {"decay_ratio = 0.8\nwarmup_steps = 200\nlr_min = 0.5\n", "linear", "5e-04", true},
        {"decay_ratio = 0.0\nwarmup_steps = 200\nmin_lr_factor = 0.1\n", "constant", "0", false},
        {"decay_ratio = 0.1\ndecay_type = \"linear\"\n", "wsd", "0", false},
        {"decay_ratio = 0.1\ndecay_type = \"cosine\"\n", "wsd", "0", true},
        {"decay_ratio = 0.2\ndecay_type = \"linear\"\n", "wsd", "0", true},
        {"decay_ratio = 0.6\ndecay_type = \"cosine\"\n", "cosine", "0", true},
        {"decay_type = \"sqrt\"\n", "linear", "0", true},
        {"decay_type = \"cosine\"\n", "cosine", "0", false},
        {"", "linear", "0", true}}) {
    INFO(row.text);
    Migration done =
        of_toml(std::string("[optimizer]\nlr = 1e-3\n[training]\nsteps = 1000\n[lr_scheduler]\n") +
                row.text);
    check_values(done, {{"lr_scheduler.lr_decay_style",
                         (std::string("\"") + row.style + "\"").c_str(), row.guessed}});
    CHECK(value(loaded(done), "lr_scheduler.min_lr") == row.min_lr);
  }
  check_values(
      of_toml("[training]\nbatch_size = 3\ntensor_parallel_degree = 8\ndata_parallel_degree = "
              "2\nwarmup_steps = 600\nsteps = 3000\ncompile = false\n[experimental]\n"
              "enable_async_tensor_parallel = true\npipeline_parallel_degree = 2\n[metrics]\n"
              "enable_tensorboard = true\n[float8]\nenable_float8_linear = true\n[checkpoint]\n"
              "enable_checkpoint = true\ninterval = 9\n"),
      {{"step_scheduler.local_batch_size", "3", false},
       {"step_scheduler.global_batch_size", "6", true},
       {"distributed.tp_size", "8", false},
       {"distributed.dp_size", "2", false},
       {"distributed.pp_size", "2", false},
       {"distributed.sequence_parallel", "true", true},
       {"distributed.enable_async_tensor_parallel", "false", false},  // beside float8
       {"distributed.pipeline.first_stage_less_layers", "1", true},
       {"distributed.activation_checkpointing", "\"selective\"", true},
       {"lr_scheduler.lr_warmup_steps", "600", false},
       {"report.tensorboard", "true", false},
       {"model.float8_linear", "true", true},
       {"checkpoint.every_steps", "9", false},
       {"checkpoint.keep", "10", true},
       {"dataset.shuffle", "false", true},
       {"dist_env.timeout_minutes", "5", true}});
  // Experts that ranks divide go without sequence parallelism.
  check_values(of_toml("[parallelism]\ntensor_parallel_degree = 2\nexpert_parallel_degree = 4\n"
                       "enable_async_tensor_parallel = true\n"),
               {{"distributed.sequence_parallel", "false", false},
                {"distributed.enable_async_tensor_parallel", "false", false},
                {"distributed.ep_size", "4", false}});
}

TEST_CASE("what overlaps tensor parallelism is written where it can be, and else left with why") {
  const std::string async = "enable_async_tensor_parallel = true\n",
                    key = "parallelism.enable_async_tensor_parallel";
  struct Row {
    const char* text;
    const char* why;  // nullptr: it is carried over
  };
  for (const Row& row :
       {Row{"tensor_parallel_degree = 8\n", nullptr},
        {"tensor_parallel_degree = 1\n", "no effect without tensor parallelism"},
        {"", "no effect without tensor parallelism"},
        {"tensor_parallel_degree = 8\n[model]\nconverters = [\"float8\"]\n", "float8_linear"},
        {"tensor_parallel_degree = 8\n[model]\nconverters = [\"quantize.linear.float8\"]\n",
         "float8_linear"},
        {"tensor_parallel_degree = 8\n[float8]\nenable_float8_linear = true\n", "float8_linear"}}) {
    INFO(row.text);
    const Migration done = of_toml("[parallelism]\n" + async + row.text);
    CHECK(value(loaded(done), "distributed.enable_async_tensor_parallel") ==
          (row.why == nullptr ? "true" : "false"));
    CHECK((find(done.left, key) == nullptr) == (row.why == nullptr));
    if (row.why != nullptr) CHECK(says(done.left, key, row.why));
  }
}

TEST_CASE("keys in tables of another name keep their meaning, and older ones their batch") {
  const Migration done = of_yaml(
      "step_scheduler: {max_steps: 4, grad_acc_steps: 4}\nmax_grad_norm: 0.5\n"
      "autopipeline: {pp_schedule: interleaved1f1b, pp_microbatch_size: 2, layers_per_stage: 4, "
      "round_virtual_stages_to_pp_multiple: up, device: cpu}\n"
      "parallelizer: {activation_checkpointing: true, reshard_after_forward: false}\n"
      "fsdp: {tp_size: 2, cp_size: 1, pp_size: 2, dp_size: 4, reduce_dtype: bfloat16}\n"
      "data: {dataloader: {shuffle: false}}\ndataloader: {batch_size: 8}\n"
      "peft: {dim: 4, use_rslora: true, lora_A_init: gaussian}\n"
      "checkpoint: {enabled: true, keep_last_n: 3}\ntensorboard: {enabled: true, log_dir: x}\n"
      "compile: {enabled: true, mode: default}\n");
  check_values(done, {{"optimizer.max_grad_norm", "0.5", false},
                      {"distributed.pipeline.pp_schedule", "\"interleaved1f1b\"", false},
                      {"distributed.pipeline.pp_microbatch_size", "2", false},
                      {"distributed.pipeline.pp_batch_size", "8", true},
                      {"distributed.pipeline.layers_per_stage", "4", false},
                      {"distributed.pipeline.round_virtual_stages_to_pp_multiple", "\"up\"", false},
                      {"distributed.fsdp2.reshard_after_forward", "false", false},
                      {"distributed.tp_size", "2", false},
                      {"distributed.pp_size", "2", false},
                      {"distributed.dp_size", "4", false},
                      {"dataset.shuffle", "false", false},
                      {"lora.rslora", "true", false},
                      {"lora.init", "\"gaussian\"", true},
                      {"checkpoint.keep", "3", false},
                      {"checkpoint.keep_every", "0", false},
                      {"report.tensorboard", "true", false},
                      {"step_scheduler.local_batch_size", "8", false},
                      {"step_scheduler.global_batch_size", "128", true}});
  CHECK(find(done.carried, "parallelizer.activation_checkpointing") != nullptr);
  CHECK(says(done.left, "fsdp.reduce_dtype", "mp_policy.reduce_dtype"));
  CHECK(says(done.left, "compile.enabled", "distributed.fsdp2.enable_compile"));
  // The scheduler's own batch comes before the loader's.
  check_values(of_yaml("step_scheduler: {local_batch_size: 2}\ndataloader: {batch_size: 8}\n"),
               {{"step_scheduler.local_batch_size", "2", false}});
  check_values(of_yaml("recipe_args: {max_grad_norm: 2}\noptimizer: {lr: 1}\n"),
               {{"optimizer.max_grad_norm", "2", false}});
  const Migration off = of_yaml("compile: {enabled: false, mode: default}\noptimizer: {lr: 1}\n");
  CHECK(find(off.left, "compile.mode") == nullptr);
  // A name that is told is told once.
  const Migration adam = of_toml("[optimizer]\nname = \"Adam\"\n");
  CHECK(find(adam.guessed, "optimizer.name") != nullptr);
  CHECK(find(adam.left, "optimizer.name") == nullptr);
}

TEST_CASE("no key that ends like one of ours is said to have nothing here") {
  std::string keys = "ckpt_every_steps: 7, mode: x";
  std::set<std::string> names;
  for (const OptionSchema& schema : all_schemas(strategies()))
    for (const meshwright_option* option : schema.options)
      if (names.insert(option->name).second) keys += std::string(", ") + option->name + ": 7";
  const Migration done = of_yaml("optimizer: {lr: 1}\nteleport: {" + keys + "}\n");
  for (const std::string& name : names) {
    CAPTURE(name);
    const Migration::Line* left = find(done.left, "teleport." + name);
    REQUIRE(left != nullptr);
    CHECK(left->text.find("nothing here is known") == std::string::npos);
    CHECK((name == "loss_fn" || left->text.starts_with("see ")));  // there is one loss
  }
  CHECK(
      find(done.left, "teleport.ckpt_every_steps")->text.starts_with("see checkpoint.every_step"));
  CHECK(find(done.left, "teleport.mode")->text == "nothing here is known to correspond");
}

TEST_CASE("a value that is not taken here is left with the loader's words, and the rest is kept") {
  Migration done = of_toml(
      "[training]\nsteps = -3\nseq_len = \"long\"\ndtype = \"float9\"\nlocal_batch_size = "
      "2\n[run]\nname = \"${HOME}\"\n");
  loaded(done);
  CHECK(says(done.left, "training.steps", "at least 0"));
  CHECK(says(done.left, "training.seq_len", "an integer"));
  CHECK(says(done.left, "training.dtype", "not a dtype"));
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
  for (const Row& row :
       {Row{"a.toml", "[training\nsteps = 1\n", 1, 0, "no valid TOML"},
        {"a.toml", "[training]\nsteps = \n", 2, 0, "no valid TOML"},
        {"a.toml", "a = 1\n", 1, 1, "none of the tables that torchtitan has"},
        {"a.toml", "[training]\nsteps = 1\n[step_scheduler]\nmax_steps = 1\n", 0, 0,
         "a configuration of Meshwright already"},
        {"a.yaml", "model:\n  a: [1, 2\nb: 3\n", 0, 0, "no valid YAML"},
        {"a.yaml", "model:\n\ta: 1\n", 2, 0, "no valid YAML"},
        {"a.yaml", "model: *nobody\n", 1, 0, "no valid YAML"},
        {"a.yaml", "- model\n", 1, 1, "a mapping is expected"},
        {"a.yaml", "", 0, 0, "a mapping is expected"},
        {"a.yaml", "model: {a: 1, a: 2}\n", 1, 15, "stands twice"},
        {"a.yaml", "? [model]\n: 1\n", 1, 3, "no plain word"},
        {"a.yaml", "b: 1\n", 1, 1, "none of the keys that tell a program"},
        {"a.yaml", "model: \"\xff\"\n", 0, 0, "not UTF-8"},
        {"a.yaml", deep.c_str(), 0, 0, "a.yaml"},
        {"a.yaml", nested.c_str(), 1, 0, "nested deeper than 32 levels"},
        {"a.yaml", bomb.c_str(), 0, 0, "more than 20000 values"},
        {"a.yaml", self.c_str(), 0, 0, "a.yaml"},
        {"a.yaml", large.c_str(), 0, 0, "larger than"},
        {"a.json", "{}", 1, 1, "none of the keys that tell a program"},
        {"a.py", "import x\n", 0, 0, "a configuration in Python"},
        {"a.yaml", "model: {_component_: x.llama}\n", 1, 1, "this is torchtune's"},
        {"a.yaml", "model_name_or_path: a/b\nfinetuning_type: lora\n", 1, 1,
         "this is LLaMA-Factory's (it has finetuning_type)"},
        {"a.yaml", "compute_environment: LOCAL_MACHINE\n", 1, 1, "accelerate's"},
        {"a.json", "{\"zero_optimization\": {\"stage\": 2}}", 1, 1, "this is DeepSpeed's"}}) {
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
  Migration known = of_yaml(
      "step_scheduler: {max_steps: 3}\ndistributed:\n  _target_: "
      "nemo_automodel.components.distributed.fsdp2.FSDP2Manager\n");
  CHECK(known.toml.find("strategy = \"fsdp2\"") != std::string::npos);
  Migration unknown = of_yaml(
      "step_scheduler: {max_steps: 3}\ndistributed:\n  _target_: their.own.TeleportManager\n");
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
  check_values(done, {{"optimizer.lr", "0.00025"},
                      {"optimizer.eps", "1.5e-08"},
                      {"distributed.sequence_parallel", "true"},
                      {"distributed.tp_size", "\"none\""},
                      {"run.name", "\"yes\""}});
  CHECK(find(done.left, "step_scheduler.max_steps") != nullptr);         // a string
  CHECK(find(done.left, "step_scheduler.local_batch_size") != nullptr);  // no number in decimal
}

TEST_CASE("what another file says cannot leave the comment it is quoted in") {
  std::string name(200, 'x');
  for (size_t i = 0; i < name.size(); i += 3) name.replace(i, 1, "\u00e9");
  Migration done = of_yaml(
      "model:\n  pretrained_model_name_or_path: \"a/b\\n[run]\\nname = 1\"\n  "
      "\"k\\n[optimizer]\\nlr = 9\": \"" +
      name + "\"\nx: \"\\n\\e\"\n");
  check_values(done, {{"run.name", "\"first\""}, {"optimizer.lr", "3e-04"}});
}

TEST_CASE("no bytes make a migration crash, and every result is a configuration") {
  std::mt19937 random(5);
  const std::string letters = "{}[]:,-?&*!|>'\"%@`#\n\t 0123456789aemx.<";
  int refused = 0, made = 0;
  for (int i = 0; i < 600; ++i) {
    const bool titan = i % 3 == 0;
    std::string text = titan ? kTitan : i % 3 == 1 ? kAutomodel : kAxolotlJob;
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
