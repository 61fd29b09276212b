// axolotl's YAML and TRL's arguments: which file is whose, and what becomes of their keys.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <tuple>

#include "apps/migrate/tests/migrated.h"
#include "tests/fixtures/folder.h"

namespace migrate_test {

TEST_CASE("a file is told by what is in it, whatever it is called") {
  for (const auto& [text, program, mark] :
       {std::tuple("[training]\nsteps = 3\n", "torchtitan", "training"),
        {"# a comment\n\ntraining.steps = 3\n", "torchtitan", "training"},
        {"step_scheduler: {max_steps: 3}\n", "Automodel", "step_scheduler"},
        {"---\n# x = 1\nbase_model: a/b\nlearning_rate: 1\n", "axolotl", "base_model"},
        {"model_name_or_path: a/b\n", "TRL", "model_name_or_path"},
        {"{\"dataset_name\": \"a/b\", \"max_steps\": 3}", "TRL", "dataset_name"}})
    for (const char* name : {"a.toml", "a.yaml", "config", "a.json"}) {
      INFO(name, ": ", text);
      const Migration done = migrate(text, name, strategies());
      CHECK(done.program == program);
      CHECK(done.known_by == mark);
      loaded(done);
    }
}

TEST_CASE("axolotl's YAML becomes a file of ours, and every key is accounted for") {
  const Migration done = of_yaml(kAxolotlJob);
  check_values(done, {{"model.pretrained", "\"models/a-model-1B\"", true},
                      {"run.dir", "\"./outputs/mine\"", false},
                      {"dataset.plugin", "\"jsonl\"", true},
                      {"dataset.path", "\"data/rows.jsonl\"", false},
                      {"dataset.seq_len", "4096", false},
                      {"dataset.jsonl.format", "\"messages\"", true},
                      {"dataset.jsonl.packing", "\"bfd\"", true},
                      {"dataset.jsonl.truncate", "\"drop\"", true},
                      {"lora.r", "32", false},
                      {"lora.alpha", "16", false},
                      {"lora.dropout", "0.05", false},
                      {"lora.target_modules", "\"all-linear\"", false},
                      {"step_scheduler.local_batch_size", "2", false},
                      {"step_scheduler.global_batch_size", "16", true},
                      {"step_scheduler.epochs", "3", false},
                      {"optimizer.name", "\"adamw\"", true},
                      {"optimizer.lr", "2e-04", false},
                      {"optimizer.betas", "[0.9, 0.999]", true},
                      {"optimizer.weight_decay", "0.01", false},
                      {"optimizer.no_decay", "\"norms_and_biases\"", true},
                      {"lr_scheduler.lr_decay_style", "\"cosine\"", false},
                      {"lr_scheduler.min_lr", "2e-05", false},
                      {"distributed.mp_policy.param_dtype", "\"bfloat16\"", false},
                      {"distributed.activation_checkpointing", "\"full\"", false},
                      {"run.float32_matmul_precision", "\"high\"", false},
                      {"checkpoint.keep", "4", true},
                      {"checkpoint.export", "\"final\"", true},
                      {"model.torch_dtype", "\"float32\"", false},  // of the adapters
                      {"dist_env.timeout_minutes", "30", true}});
  for (const auto& [key, why] : {std::pair("adapter", "lora.base_dtype"),
                                 {"load_in_4bit", "4 or 8 bits"},
                                 {"warmup_ratio", "10% of the run's steps"},
                                 {"saves_per_epoch", "checkpoint.every_steps"},
                                 {"val_set_size", "validation_dataset.path"},
                                 {"liger_rope", "no kernels to choose"},
                                 {"datasets.train_on_eos", "dataset.jsonl"},
                                 {"teleport", ""}})
    CHECK_MESSAGE(says(done.left, key, why), key);
  CHECK(find(done.left, "teleport")->line == 33);
  CHECK(find(done.left, "wandb_name") == nullptr);
  CHECK(says(done.missing, "lr_scheduler.lr_warmup_steps", "10%"));
  CHECK(says(done.missing, "checkpoint.every_steps", "once an epoch"));
}

TEST_CASE("what axolotl's keys mean together") {
  const std::string head = "base_model: /m\nlearning_rate: 1e-3\n";
  struct Row {
    const char* text;
    std::vector<Expected> values;
    const char* left = nullptr;
  };
  for (const Row& row : std::vector<Row>{
           {"",
            {{"model.pretrained", "\"/m\"", false},
             {"model.torch_dtype", "\"bfloat16\"", true},  // loaded in what it computes in
             {"lr_scheduler.lr_decay_style", "\"cosine\"", false},
             {"optimizer.weight_decay", "0", true},
             {"step_scheduler.epochs", "1", true},
             {"step_scheduler.local_batch_size", "1", true},
             {"dataset.jsonl.packing", "\"none\"", true}}},
           {"max_steps: 1000\nnum_epochs: 2\n",
            {{"step_scheduler.max_steps", "1000", false},
             {"lr_scheduler.lr_warmup_steps", "30", true}},
            "num_epochs"},
           {"max_steps: 100\nwarmup_steps: 0.1\n", {{"lr_scheduler.lr_warmup_steps", "10", true}}},
           {"lr_scheduler: constant\nwarmup_steps: 9\n",
            {{"lr_scheduler.lr_decay_style", "\"constant\"", false},
             {"lr_scheduler.lr_warmup_steps", "0", true}},
            "warmup_steps"},
           {"lr_scheduler: constant_with_warmup\nwarmup_steps: 9\n",
            {{"lr_scheduler.lr_decay_style", "\"constant\"", false},
             {"lr_scheduler.lr_warmup_steps", "9", true}}},
           {"lr_scheduler: rex\n", {{"lr_scheduler.lr_decay_style", "\"cosine\"", true}}},
           {"optimizer: muon\n", {{"optimizer.name", "\"adamw\"", true}}},
           {"lora_r: 8\nlora_alpha: 16\n", {{"lora.r", "0", false}}, "lora_r"},
           {"adapter: lora\nlora_r: 8\nlora_alpha: 16\nlora_target_modules: "
            "'layers.[0-9]+.(mlp|self_attn)'\n",
            {{"lora.r", "8", false}, {"lora.target_modules", "\"all-linear\"", false}},
            "lora_target_modules"},
           {"adapter: lora\nlora_model_dir: ./adapter\n",
            {{"lora.adapter", "\"./adapter\"", false}, {"lora.r", "0", false}}},
           {"bf16: false\n", {{"distributed.mp_policy.param_dtype", "\"float32\"", false}}},
           {"bf16: true\nbfloat16: true\n",
            {{"distributed.mp_policy.param_dtype", "\"bfloat16\"", false}},
            "bfloat16"},
           {"fp16: true\nadapter: lora\n",
            {{"distributed.mp_policy.param_dtype", "\"float16\"", false}}},
           {"batch_size: 32\nmicro_batch_size: 4\n",
            {{"step_scheduler.global_batch_size", "32", true}}},
           {"dp_shard_size: 4\ndp_replicate_size: 2\nmicro_batch_size: 3\n",
            {{"distributed.dp_size", "8", false},
             {"distributed.dp_replicate_size", "2", false},
             {"step_scheduler.global_batch_size", "24", true}}},
           {"fsdp: [full_shard, auto_wrap]\nfsdp_config: {fsdp_offload_params: true, "
            "reshard_after_forward: false, activation_checkpointing: true}\n",
            {{"distributed.fsdp2.offload_policy", "\"cpu\"", false},
             {"distributed.fsdp2.reshard_after_forward", "false", false},
             {"distributed.activation_checkpointing", "\"full\"", false}}},
           {"gradient_checkpointing: offload\ntf32: auto\n",
            {{"distributed.activation_checkpointing", "\"full\"", true},
             {"run.float32_matmul_precision", "\"high\"", true}}},
           {"save_steps: 50\nsave_total_limit: 2\n",
            {{"checkpoint.every_steps", "50", false}, {"checkpoint.keep", "2", false}}},
           {"save_strategy: no\n", {{"checkpoint.every_steps", "0", true}}},
           {"train_on_inputs: true\nexcess_length_strategy: truncate\n",
            {{"dataset.jsonl.train_on", "\"all\"", false},
             {"dataset.jsonl.truncate", "\"right\"", false}}},
           {"datasets: [{path: json, data_files: ./a.json, type: completion}]\n",
            {{"dataset.path", "\"./a.json\"", false},
             {"dataset.kind", "\"text\"", true},
             {"dataset.plugin", "\"none\""},
             {"dataset.text.packing", "\"none\"", true},
             {"dataset.jsonl.packing", "\"bfd\"", false}}},  // ours: no rows are read
           {"sample_packing: true\ndatasets: [{path: ./a, type: completion, field: body}]\n",
            {{"dataset.text.packing", "\"bfd\"", true},
             {"dataset.text.text_field", "\"body\"", false}}},
           {"pretraining_dataset: [{path: ./a, text_column: body}]\nmax_steps: 3\n",
            {{"dataset.kind", "\"text\"", true},
             {"dataset.text.packing", "\"stream\"", true},
             {"dataset.text.attention", "\"auto\"", false},
             {"dataset.text.text_field", "\"body\"", false}}},
           {"pretraining_dataset: [{path: ./a}, {path: ./b}]\nsample_packing: true\n"
            "pretrain_multipack_attn: false\ntrain_on_inputs: true\n",
            {{"dataset.path", "\"./a\"", false},
             {"dataset.text.packing", "\"stream\"", true},
             {"dataset.text.attention", "\"sample\"", false}},
            "pretraining_dataset"},
           {"datasets: [{path: org/of_the_hub, type: alpaca}]\n",
            {{"dataset.plugin", "\"jsonl\"", true}},
            "datasets"},
           {"chat_template: llama3\n", {}, "chat_template"},
           {"chat_template: chatml\n", {{"dataset.jsonl.chat_template", "\"chatml\"", false}}}}) {
    INFO(row.text);
    const Migration done = of_yaml(head + row.text);
    check_values(done, row.values);
    if (row.left != nullptr) CHECK_MESSAGE(find(done.left, row.left) != nullptr, row.left);
  }
  // What is about preferences is told first.
  CHECK(says(of_yaml(head + "rl: dpo\n").missing, "rl", "preferences"));
}

TEST_CASE("axolotl's validation is read as the data that train are") {
  const std::string head =
      "base_model: /m\nlearning_rate: 1e-3\nsequence_len: 2048\ntokenizer_config: ./t\n";
  const std::string rows = "datasets: [{path: ./a, type: chat_template}]\n",
                    texts = "datasets: [{path: ./a, type: completion}]\n",
                    tests = "test_datasets: [{path: ./v, type: chat_template}]\n",
                    documents = "test_datasets: [{path: ./v, type: completion}]\n";
  check_values(of_yaml(head + rows + tests + "train_on_inputs: true\nchat_template: chatml\n"),
               {{"dataset.seq_len", "2048", false},
                {"dataset.jsonl.tokenizer", "\"./t\"", false},
                {"validation_dataset.seq_len", "2048", true},
                {"validation_dataset.jsonl.tokenizer", "\"./t\"", false},
                {"validation_dataset.jsonl.chat_template", "\"chatml\"", false},
                {"validation_dataset.jsonl.train_on", "\"all\"", false},
                {"validation_dataset.jsonl.packing", "\"none\"", true},
                {"validation_dataset.jsonl.truncate", "\"drop\"", true}});
  check_values(of_yaml(head + rows + tests + "sample_packing: true\neval_sample_packing: false\n"),
               {{"dataset.jsonl.packing", "\"bfd\"", true},
                {"validation_dataset.jsonl.packing", "\"none\"", true}});
  check_values(of_yaml(head + texts + tests), {{"dataset.tokenizer", "\"./t\"", false},
                                               {"validation_dataset.jsonl.tokenizer", "\"./t\""},
                                               {"dataset.jsonl.tokenizer", "\"none\""}});
  check_values(of_yaml(head + rows + documents),
               {{"dataset.jsonl.tokenizer", "\"./t\"", false},
                {"validation_dataset.tokenizer", "\"./t\"", false},
                {"validation_dataset.seq_len", "2048", true},
                {"validation_dataset.jsonl.tokenizer", "\"none\""}});
  const Migration alone = of_yaml(head + texts + "chat_template: chatml\n");
  CHECK(alone.toml.find("jsonl") == std::string::npos);
  CHECK(says(alone.left, "chat_template", "no turns"));
}

TEST_CASE("TRL's arguments become a file of ours, with TRL's defaults") {
  const std::string head = "model_name_or_path: org/a-model-1B\n";
  struct Row {
    const char* text;
    std::vector<Expected> values;
    const char* left = nullptr;
  };
  for (const Row& row : std::vector<Row>{
           {"dataset_name: org/of_the_hub\n",
            {{"model.pretrained", "\"models/a-model-1B\"", true},
             {"model.torch_dtype", "\"float32\"", false},
             {"distributed.mp_policy.param_dtype", "\"bfloat16\"", false},
             {"distributed.activation_checkpointing", "\"full\"", true},
             {"optimizer.lr", "2e-05", true},
             {"optimizer.weight_decay", "0", true},
             {"lr_scheduler.lr_decay_style", "\"linear\"", true},
             {"lr_scheduler.lr_warmup_steps", "0", true},
             {"step_scheduler.epochs", "3", true},
             {"step_scheduler.local_batch_size", "8", true},
             {"step_scheduler.global_batch_size", "8", true},
             {"checkpoint.every_steps", "500", true},
             {"checkpoint.keep_every", "500", true},
             {"dataset.plugin", "\"jsonl\"", true},
             {"dataset.seq_len", "1024", true},
             {"dataset.jsonl.packing", "\"none\"", true},
             {"dataset.jsonl.train_on", "\"all\"", true},
             {"lora.r", "0", false}},
            "dataset_name"},
           {"dataset_name: ./rows\nassistant_only_loss: true\npacking: true\nmax_length: 2048\n"
            "truncation_mode: keep_end\nuse_peft: true\nlora_target_modules: all-linear\n",
            {{"dataset.path", "\"./rows\"", false},
             {"dataset.seq_len", "2048", false},
             {"dataset.jsonl.train_on", "\"assistant\"", false},
             {"dataset.jsonl.packing", "\"bfd\"", false},
             {"dataset.jsonl.truncate", "\"left\"", false},
             {"lora.r", "16", true},
             {"lora.alpha", "32", false},
             {"lora.dropout", "0.05", true},
             {"lora.target_modules", "\"all-linear\"", false}}},
           {"use_peft: true\ncompletion_only_loss: false\nshuffle_dataset: true\n"
            "packing_strategy: bfd\naverage_tokens_across_devices: false\n",
            {{"lora.r", "16", true},
             {"dataset.jsonl.train_on", "\"all\"", false},
             {"dataset.shuffle", "true", false}},
            "packing_strategy"},
           {"average_tokens_across_devices: false\n", {}, "average_tokens_across_devices"},
           {"packing: true\npacking_strategy: wrapped\ndtype: bfloat16\nbf16: false\n",
            {{"dataset.jsonl.packing", "\"sequential\"", true},
             {"model.torch_dtype", "\"bfloat16\"", false},
             {"distributed.mp_policy.param_dtype", "\"float32\"", false}}},
           {"max_steps: 205\nwarmup_ratio: 0.1\nlr_scheduler_type: cosine_with_min_lr\n"
            "lr_scheduler_kwargs: {min_lr_rate: 0.1}\nlearning_rate: 1e-4\n",
            {{"lr_scheduler.lr_warmup_steps", "21", true},
             {"lr_scheduler.lr_decay_style", "\"cosine\"", false},
             {"lr_scheduler.min_lr", "1e-05", false}}},
           {"max_steps: -1\nnum_train_epochs: 2.0\nsave_strategy: epoch\neval_strategy: 'no'\n",
            {{"step_scheduler.epochs", "2", false}},
            "save_strategy"},
           {"num_train_epochs: 0.5\n", {}, "num_train_epochs"},
           {"max_steps: 100\nsave_steps: 0.25\nreport_to: [tensorboard]\nddp_timeout: 600\n",
            {{"checkpoint.every_steps", "25", false},
             {"report.tensorboard", "true", false},
             {"dist_env.timeout_minutes", "10", false}}},
           {"lr_scheduler_type: inverse_sqrt\noptim: adafactor\n",
            {{"lr_scheduler.lr_decay_style", "\"cosine\"", true},
             {"optimizer.name", "\"adamw\"", true}}}}) {
    INFO(row.text);
    const Migration done = of_yaml(head + row.text);
    CHECK(done.program == "TRL");
    check_values(done, row.values);
    if (row.left != nullptr) CHECK_MESSAGE(find(done.left, row.left) != nullptr, row.left);
  }
  const Migration other = of_yaml(head + "beta: 0.1\nmax_prompt_length: 512\n");
  CHECK(says(other.missing, "recipe", "preferences"));
  CHECK(find(other.left, "beta") != nullptr);
}

TEST_CASE("several data sets become a mix, or sets of the validation") {
  const std::string axolotl = "base_model: /m\nlearning_rate: 1e-3\n",
                    trl = "model_name_or_path: /m\n";
  struct Row {
    std::string text;
    std::vector<std::string> mix = {}, sets = {};
    std::vector<const char*> left = {};
    const char* guess = nullptr;
    std::vector<Expected> values = {};
    std::vector<std::string> own = {};  // of the sources that say something for themselves
  };
  for (const Row& row : std::vector<Row>{
           {axolotl + "datasets: [{path: ./a.jsonl, type: alpaca}, {path: ./b/a.jsonl, type: "
                      "alpaca}]\nsample_packing: true\n",
            {R"(name = "a", epochs = 1, path = "./a.jsonl")",
             R"(name = "a_2", epochs = 1, path = "./b/a.jsonl")"},
            {},
            {"datasets.type"},
            "each is read once an epoch, as axolotl reads what it joins; a sample has rows of one "
            "alone",
            {{"dataset.plugin", "\"jsonl\"", true}, {"dataset.path", "\"none\""}}},
           // Of the hub: where the rows go, and whose they are.
           {axolotl + "datasets: [{path: org/x, split: train, type: chat_template}, {path: org/x, "
                      "split: more, type: completion}]\n",
            {R"(name = "x", epochs = 1, path = "data/x.jsonl")",
             R"(name = "x_more", epochs = 1, kind = "text", path = "data/x_more.jsonl")"},
            {},
            {},
            "save the rows of org/x (more) there as JSON Lines; each is read once",
            {{"dataset.plugin", "\"jsonl\"", true},
             {"dataset.jsonl.format", "\"messages\"", true},
             {"dataset.text.packing", "\"none\"", true}}},
           // What one of them alone has stands below it, and what all have below [dataset].
           {axolotl + "chat_template: chatml\ndatasets: [{path: ./a, type: chat_template, "
                      "field_messages: talk, roles_to_train: [assistant]}, {path: ./b, type: "
                      "chat_template, chat_template: tokenizer_default}, {path: ./c, type: "
                      "completion, field: body}]\n",
            {R"(name = "a", epochs = 1, path = "./a")", R"(name = "b", epochs = 1, path = "./b")",
             R"(name = "c", epochs = 1, kind = "text", path = "./c")"},
            {},
            {},
            nullptr,
            {{"dataset.jsonl.format", "\"messages\"", true},
             {"dataset.jsonl.chat_template", "\"chatml\"", false},
             {"dataset.text.text_field", "\"body\"", false}},
            {R"(a: fields = {"messages" = "talk"}, train_on = "assistant")",
             R"(b: chat_template = "none")"}},
           {axolotl + "datasets: [{path: ./a, type: chat_template}, {path: ./b, type: alpaca}]\n",
            {R"(name = "a", epochs = 1, path = "./a")", R"(name = "b", epochs = 1, path = "./b")"},
            {},
            {"datasets.type"},
            nullptr,
            {},
            {R"(a: format = "messages")"}},
           {axolotl + "test_datasets: [{path: ./a, type: completion}, {path: ./b, type: "
                      "completion, field: body}]\n",
            {},
            {R"(name = "a", kind = "text", path = "./a")",
             R"(name = "b", kind = "text", path = "./b")"},
            {},
            nullptr,
            {{"validation_dataset.text.text_field", "\"text\""}},
            {R"(b: text_field = "body")"}},
           {axolotl + "datasets: [{path: ./a, type: chat_template, field_messages: talk}, {path: "
                      "./b, type: chat_template, field_messages: talk}]\n",
            {R"(name = "a", epochs = 1, path = "./a")", R"(name = "b", epochs = 1, path = "./b")"},
            {},
            {},
            nullptr,
            {{"dataset.jsonl.fields", "{\"messages\" = \"talk\"}", false}}},
           {axolotl + "datasets: [{path: json, data_files: [./a.jsonl, ./b.jsonl]}]\n",
            {R"(name = "a", epochs = 1, path = "./a.jsonl")",
             R"(name = "b", epochs = 1, path = "./b.jsonl")"}},
           {axolotl + "test_datasets: [{path: ./a, type: chat_template}, {path: ./b, type: "
                      "completion}]\neval_steps: 7\n",
            {},
            {R"(name = "a", path = "./a")", R"(name = "b", kind = "text", path = "./b")"},
            {},
            "validation_loss is their mean",
            {{"validation_dataset.plugin", "\"jsonl\"", true},
             {"validation_dataset.every_steps", "7", false},
             {"validation_dataset.jsonl.format", "\"messages\"", true}}},
           {trl + "datasets: [{path: ./a, fraction: 0.7}, {path: org/b, fraction: 0.3}]\n",
            {R"(name = "a", weight = 0.7, path = "./a")",
             R"(name = "b", weight = 0.3, path = "data/b.jsonl")"},
            {},
            {},
            "an epoch ends before any is read twice"},
           {trl + "datasets: [{path: ./a, split: x, columns: [q]}, {path: ./b, data_dir: c}]\n",
            {R"(name = "a", epochs = 1, path = "./a")", R"(name = "b", epochs = 1, path = "./b")"},
            {},
            {"datasets.split", "datasets.columns", "datasets.data_dir"},
            "as TRL reads what it joins"},
           {trl + "dataset_mixture: {datasets: [{id: org/a, config: c, split: s, columns: "
                  "[messages], weight: 0.5}, {id: org/b}, {id: org/c, weight: 0}], seed: 3, "
                  "test_split_size: 100}\n",
            {R"(name = "a_c_s", epochs = 0.5, path = "data/a_c_s.jsonl")",
             R"(name = "b", epochs = 1, path = "data/b.jsonl")"},
            {},
            {"dataset_mixture.seed", "dataset_mixture.test_split_size",
             "dataset_mixture.datasets.weight"},
            "that part of it is read in an epoch",
            {},
            {R"(a_c_s: format = "messages")"}},
           {trl + "dataset_mixer: {org/a: 1.0, org/b: 0.25}\ndataset_splits: [train, test]\n",
            {R"(name = "a", epochs = 1, path = "data/a.jsonl")",
             R"(name = "b", epochs = 0.25, path = "data/b.jsonl")"},
            {},
            {"dataset_splits"}}}) {
    INFO(row.text);
    const Migration done = of_yaml(row.text);
    check_values(done, row.values);
    const Config config = loaded(done);
    CHECK(text::join(listed(config, "dataset.mix"), "; ") == text::join(row.mix, "; "));
    CHECK(text::join(listed(config, "validation_dataset.set"), "; ") == text::join(row.sets, "; "));
    CHECK(text::join(own_options(config), "; ") == text::join(row.own, "; "));
    for (const char* key : row.left) CHECK_MESSAGE(find(done.left, key) != nullptr, key);
    if (row.guess != nullptr)
      CHECK(std::ranges::any_of(done.guessed, [&](const auto& line) {
        return line.text.starts_with("[[") && line.text.find(row.guess) != std::string::npos;
      }));
    CHECK(says(done.missing, "dataset.path", "") == row.mix.empty());
    CHECK(says(done.missing, "dataset.mix.path", "JSON Lines") ==
          (done.toml.find("data/") != std::string::npos));
  }
}

TEST_CASE("columns of other names are told, or named where there is a key for it") {
  static constexpr meshwright_option kFields =
      with_flags(option("fields", MESHWRIGHT_STRING_MAP, nullptr, "Columns."), MESHWRIGHT_OPTIONAL);
  PluginSchemas with = strategies(), without = strategies();
  for (PluginSchemas::Component& one : with.components)
    if (one.schema.find("fields") == nullptr) one.schema.options.push_back(&kFields);
  for (PluginSchemas::Component& one : without.components)
    std::erase_if(one.schema.options,
                  [](const meshwright_option* o) { return o->name == std::string("fields"); });
  struct Row {
    const char *text, *fields, *left;
  };
  for (const Row& row :
       {Row{"dataset: {_target_: x.ColumnMappedTextInstructionDataset, path_or_dataset_id: ./a, "
            "column_mapping: {question: q, answer: a}}\noptimizer: {lr: 1}\n",
            "fields = {completion = \"a\", prompt = \"q\"}", "dataset.column_mapping.question"},
        {"dataset: {_target_: x.ColumnMappedTextInstructionDataset, path_or_dataset_id: ./a, "
         "column_mapping: {context: c, question: q, answer: a}}\noptimizer: {lr: 1}\n",
         "fields = {completion = \"a\", prompt = \"{c} {q}\"}", "dataset.column_mapping.context"},
        {"base_model: /m\ndatasets: [{path: ./a, type: chat_template, field_messages: talk}]\n",
         "fields = {messages = \"talk\"}", "datasets.field_messages"},
        {"base_model: /m\ndatasets: [{path: ./a, type: {field_instruction: q, field_output: a, "
         "format: \"Q: {instruction} {input}\\nA: \"}}]\n",
         R"(fields = {prompt = "Q: {q} {input?}\nA: ", completion = "a"})", "datasets.type"},
        {"base_model: /m\ndatasets: [{path: ./a, type: completion, field: chapter}]\n",
         "text_field = \"chapter\"", nullptr},
        {"model_name_or_path: /m\ndataset_name: ./a\ndataset_text_field: body\n",
         "fields = {text = \"body\"}", "dataset_text_field"}}) {
    INFO(row.text);
    const Migration named = migrate(row.text, "a.yaml", with),
                    told = migrate(row.text, "a.yaml", without);
    INFO(named.toml);
    CHECK(named.toml.find(row.fields) != std::string::npos);
    if (row.left == nullptr) continue;  // documents, which have a field of their own
    CHECK(find(named.left, row.left) == nullptr);
    CHECK(find(told.left, row.left) != nullptr);
    CHECK(told.toml.find("\nfields = ") == std::string::npos);
  }
}

TEST_CASE("a folder that is here comes before a name on the hub") {
  const TemporaryFolder folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path);
  std::filesystem::create_directories("org/name");
  std::filesystem::create_directories("models/other");
  std::ofstream("models/other/config.json") << "{}";
  const Migration here = of_yaml("model_name_or_path: org/name\ndataset_name: org/name\n"),
                  there = of_yaml("model_name_or_path: org/other\n");
  std::filesystem::current_path(before);
  CHECK(says(here.carried, "model_name_or_path", "model.pretrained = \"org/name\""));
  CHECK(here.toml.find("path = \"org/name\"") != std::string::npos);
  CHECK(
      says(there.guessed, "model_name_or_path", "models/other\": the folder that is here already"));
}

}  // namespace migrate_test
