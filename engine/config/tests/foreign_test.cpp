// Names of other programs, and words that are no name at all: both lead to the key that is meant.
#include "engine/config/foreign.h"

#include <algorithm>
#include <map>
#include <set>

#include "engine/config/describe.h"
#include "engine/config/tests/loaded.h"
#include "plugins/fully_sharded/options.h"
#include "plugins/jsonl/options.h"
#include "sdk/base/words.h"

namespace foreign_test {

using namespace meshwright;
using namespace meshwright::config;

namespace {

constexpr meshwright_option kOther[] = {bool_option("average_in_collective", false, "A switch.")};

PluginSchemas strategies() {
  PluginSchemas out{
      {{"fsdp2", {}, make_schema("distributed.fsdp2", "fsdp2", kFullyShardedOptions.declared)},
       {"other", {}, make_schema("distributed.other", "other", kOther)}}};
  for (const char* table : {"dataset.jsonl", "validation_dataset.jsonl"})
    out.components.push_back({make_schema(table, "jsonl", jsonl::kOptions), false});
  return out;
}

Error error_of(const std::string& text) {
  return config::testing::only_error(config::testing::load(text, {}, {strategies()}));
}

std::string helps(const Error& error) {
  std::string out;
  for (const std::string& help : error.helps()) out += help + "\n";
  return out;
}

std::vector<std::string> found(const std::string& word) {
  std::vector<std::string> out;
  for (const Match& match : search_options(word, strategies()).keys) out.push_back(match.key);
  return out;
}

bool has(const std::vector<std::string>& keys, const std::string& key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

}  // namespace

TEST_CASE(
    "every name of another program leads to a key that exists, and stands in the table once") {
  std::set<std::string> names;
  for (const ForeignName& name : foreign_names()) {
    INFO(name.name);
    CHECK(names.insert(name.name).second);
    std::string key = name.key, table = key.substr(0, key.rfind('.'));
    if (key.empty()) {
      CHECK(std::string(name.note).size() > 10);  // a sentence instead
      CHECK(name.carry == Carry::told);
      continue;
    }
    bool known = false;
    for (const OptionSchema& schema : all_schemas(strategies()))
      known = known ||
              (schema.table == table && schema.find(key.substr(key.rfind('.') + 1)) != nullptr);
    CHECK(known);
    // A name of ours must not be called foreign: it would never be reached.
    for (const OptionSchema& schema : all_schemas(strategies()))
      for (const meshwright_option* option : schema.options)
        CHECK(schema.table + "." + option->name != name.name);
  }
}

TEST_CASE("what is said to have no counterpart has none among the keys") {
  // Names that end like a key of ours and mean something else.
  const std::set<std::string> others = {"job.print_config",
                                        "checkpoint.export_dtype",
                                        "compile.backend",
                                        "step_scheduler.gc_every_steps",
                                        "step_scheduler.log_remote_every_steps",
                                        "model.config",  // sizes below it
                                        "model.text_config",
                                        "model.backend",
                                        "checkpoint.model_save_format",
                                        "dataloader.persistent_workers",
                                        "validation_dataloader.persistent_workers",
                                        "data.dataloader.persistent_workers",
                                        "loss_fn",
                                        "kd_loss_fn",
                                        "model_config",
                                        "neftune_noise_alpha",
                                        "hub_strategy",
                                        "logging_strategy"};
  for (const ForeignName& name : foreign_names()) {
    if (*name.key != '\0' || others.contains(name.name)) continue;
    INFO(name.name);
    const std::string last = name.name.substr(name.name.rfind('.') + 1);
    for (const OptionSchema& schema : all_schemas(strategies()))
      for (const meshwright_option* option : schema.options) {
        const std::string ours = option->name;
        CAPTURE(schema.table + "." + ours);
        CHECK_FALSE((last == ours || (ours.size() >= 5 && last.ends_with("_" + ours))));
      }
  }
}

// Keys whose names share a word with a row that says "no counterpart", or end like a name in a row
// of another key, as they were when somebody last held the rows against them.
constexpr const char* kLookedAt = R"(
checkpoint.export dataset.dtype dataset.tokenizer dataset.jsonl.cache dataset.jsonl.chat_template
dataset.jsonl.format dataset.jsonl.packing dataset.jsonl.special_tokens_in_content
dataset.jsonl.tokenizer dataset.jsonl.train_on dataset.mix.dtype dataset.mix.epochs
dataset.mix.name dataset.mix.packing dataset.mix.tokenizer dataset.seq_len dataset.shuffle dataset.workers
dist_env.backend distributed.activation_checkpointing distributed.activation_checkpointing_scope
distributed.context.load_balancer distributed.enable_async_tensor_parallel
distributed.fsdp2.backend distributed.fsdp2.enable_fsdp2_prefetch
distributed.fsdp2.fsdp2_backward_prefetch_depth distributed.fsdp2.fsdp2_forward_prefetch_depth
distributed.fsdp2.offload_pin_memory distributed.fsdp2.offload_policy
distributed.fsdp2.patch_is_packed_sequence distributed.moe.lm_head_precision
distributed.moe.mp_policy.output_dtype distributed.moe.mp_policy.param_dtype
distributed.mp_policy.output_dtype distributed.mp_policy.param_dtype distributed.pipeline.dtype
distributed.pipeline.loss_fn distributed.pipeline.module_fqns_per_model_part
distributed.pipeline.patch_stage_backward_maybe_with_nosync distributed.pipeline.pp_batch_size
distributed.pipeline.round_virtual_stages_to_pp_multiple distributed.sequence_parallel
distributed.strategy lora.alpha lora.alpha_pattern lora.dropout lora.exclude_modules lora.export
lora.rank_pattern lora.target_modules model.config model.torch_dtype optimizer.dynamic_loss_scale
optimizer.group.lr_factor optimizer.loss_scale optimizer.lr optimizer.max_grad_norm optimizer.name
plugins.load report.prometheus_file run.name run.seed run.skip_step_above_z
step_scheduler.global_batch_size step_scheduler.local_batch_size validation_dataset.dtype
validation_dataset.jsonl.cache validation_dataset.jsonl.chat_template
validation_dataset.jsonl.format validation_dataset.jsonl.packing
validation_dataset.jsonl.special_tokens_in_content validation_dataset.jsonl.tokenizer
validation_dataset.jsonl.train_on validation_dataset.jsonl.truncate validation_dataset.packing
validation_dataset.seq_len validation_dataset.shuffle validation_dataset.tokenizer
validation_dataset.set.dtype validation_dataset.set.name validation_dataset.set.packing
validation_dataset.set.tokenizer validation_dataset.workers
)";

// What a name is about: its last part, without the words that stand in every other name.
std::set<std::string> words_of(const std::string& name) {
  static const std::set<std::string> common = {
      "enable", "enabled", "steps", "step", "name",  "type", "mode",  "path", "freq",
      "every",  "with",    "model", "size", "dtype", "data", "after", "last", "less"};
  std::set<std::string> out;
  for (const std::string& word : text::split_names(name.substr(name.rfind('.') + 1).c_str(), '_'))
    if (word.size() >= 4 && !common.contains(word)) out.insert(word);
  return out;
}

TEST_CASE("a key that is added asks for a look at every row that may be about it") {
  std::map<std::string, std::string> asks;  // keys, and the names that have to be looked at
  for (const OptionSchema& schema : all_schemas(strategies())) {
    if (schema.table == "distributed.other") continue;  // this test's own
    for (const meshwright_option* option : schema.options) {
      const std::string key = key_of(schema, *option);
      const std::set<std::string> words = words_of(key);
      for (const ForeignName& name : foreign_names()) {
        const std::string last = name.name.substr(name.name.rfind('.') + 1);
        const std::set<std::string> theirs = words_of(last);
        const bool shares = std::any_of(words.begin(), words.end(), [&](const std::string& word) {
          return theirs.contains(word);
        });
        if (*name.key == '\0' ? shares : last == option->name && name.key != key)
          asks[key] += "  " + name.name;
      }
    }
  }
  std::set<std::string> looked_at;
  std::string all = kLookedAt;
  std::replace(all.begin(), all.end(), '\n', ' ');
  for (const std::string& key : text::split_names(all.c_str(), ' ')) looked_at.insert(key);
  for (const auto& [key, names] : asks)
    CHECK_MESSAGE(looked_at.contains(key), key,
                  " is new, or a name is: is it what these are here? Say so in the table of "
                  "foreign.cpp, and name the key in kLookedAt:",
                  names);
  for (const std::string& key : looked_at)
    CHECK_MESSAGE(asks.contains(key), key, " no longer has to be looked at: take it out");
}

TEST_CASE("an unknown key that another program uses is answered with the key here") {
  struct Row {
    const char *text, *key, *help;
  };
  for (const Row& row :
       {Row{"[optimizer]\nlearning_rate = 1.0\n", "optimizer.learning_rate",
            "optimizer.learning_rate is optimizer.lr here"},
        {"[step_scheduler]\ngradient_accumulation_steps = 4\n",
         "step_scheduler.gradient_accumulation_steps",
         "is step_scheduler.global_batch_size here: accumulation is derived"},
        {"gradient_accumulation_steps = 4\n", "gradient_accumulation_steps",
         "is step_scheduler.global_batch_size here"},
        {"[lr_scheduler]\nwarmup_steps = 4\n", "lr_scheduler.warmup_steps",
         "is lr_scheduler.lr_warmup_steps here"},
        {"[checkpoint]\ninterval = 4\n", "checkpoint.interval", "is checkpoint.every_steps here"},
        {"[lora]\nrank = 4\n", "lora.rank", "lora.rank is lora.r here: adapters of that rank"},
        {"[model]\nname = \"llama3\"\n", "model.name",
         "is model.config here: the path of a Hugging Face config.json"},
        {"[training]\nsteps = 4\nseq_len = 8\nbogus = 1\n", "training",
         "training.steps is step_scheduler.max_steps here\ntraining.seq_len is dataset.seq_len "
         "here\n"},
        {"[compile]\nenable = true\n", "compile",
         "compile is distributed.fsdp2.enable_compile here: what stands for a compiler"},
        {"[training]\nfp16 = true\n", "training",
         "is distributed.mp_policy.param_dtype here: \"float16\"; optimizer.loss_scale scales"},
        {"[parallelism]\ntp = 2\n", "parallelism", "parallelism.tp is distributed.tp_size here"},
        {"[distributed]\nbf16 = true\n", "distributed.bf16",
         "is distributed.mp_policy.param_dtype here: \"bfloat16\""},
        {"[optimizer]\ntf32 = true\n", "optimizer.tf32",
         "is run.float32_matmul_precision here: \"high\" for true"}}) {
    INFO(row.text);
    const Error error = error_of(row.text);
    CHECK(error.code() == ErrorCode::unknown_key);
    CHECK(error.key() == row.key);
    INFO(helps(error));
    CHECK(helps(error).find(row.help) != std::string::npos);
    CHECK(helps(error).find("remove the line") == std::string::npos);
  }
}

TEST_CASE(
    "another program's key in a table of ours is told its key here, unless it means several "
    "things") {
  const Error error = error_of("[distributed]\ntensor_parallel_degree = 2\n");
  CHECK(helps(error) ==
        foreign_text(*find_foreign_elsewhere("tensor_parallel_degree"), "tensor_parallel_degree") +
            "\n");
  CHECK(helps(error).find("distributed.tp_size") != std::string::npos);
  CHECK(find_foreign_elsewhere("enable") == nullptr);
  CHECK(find_foreign_elsewhere("rank") == nullptr);  // of a process, where it is not [lora]'s
  CHECK(find_foreign_elsewhere("nobody_has_this") == nullptr);
}

TEST_CASE("a list of tables is told with its brackets") {
  for (const char* text :
       {"[[optimizer.groups]]\npattern = \"*\"\n", "[optimizer]\ngroups = 1\n"}) {
    INFO(text);
    const Error error = error_of(text);
    CHECK(error.code() == ErrorCode::unknown_key);
    CHECK(error.key() == "optimizer.groups");
    CHECK(helps(error) == "did you mean [[optimizer.group]]?\n");
  }
}

TEST_CASE("a name that several tables know says nothing about where it belongs") {
  for (const char* text :
       {"[model]\nname_ = 1\n", "[dist_env]\nname = \"a\"\n", "[optimizer]\nevery_steps = 1\n"}) {
    INFO(text);
    const std::string said = helps(error_of(text));
    CHECK(said.find("belongs to") == std::string::npos);
    CHECK(said.find("did you mean") == std::string::npos);
  }
  for (const auto& [key, home] : {std::pair("momentum = 1.0", "[optimizer]"),
                                  {"seq_len = 1", "[dataset]"},
                                  {"param_dtype = \"a\"", "[distributed.mp_policy]"}})
    CHECK(helps(error_of(std::string("[run]\n") + key + "\n"))
              .find(std::string("belongs to ") + home) != std::string::npos);
}

TEST_CASE(
    "a word finds the keys that have to do with it: names first, then choices, then descriptions") {
  std::vector<std::string> keys = found("activation");
  REQUIRE(keys.size() >= 3);
  CHECK(keys[0] == "distributed.activation_checkpointing");
  CHECK(keys[1] == "distributed.activation_checkpointing_scope");
  CHECK(has(keys, "distributed.sequence_parallel"));  // its description speaks of activations
  keys = found("seq_len");
  CHECK(has(keys, "dataset.seq_len"));
  CHECK(has(keys, "validation_dataset.seq_len"));
  CHECK(keys[0] == "dataset.seq_len");
  CHECK(keys[2] == "distributed.pipeline.pp_seq_len");  // the word is only a part of its name
  keys = found("bf16");
  CHECK(keys[0] == "distributed.mp_policy.param_dtype");
  CHECK(has(keys, "model.torch_dtype"));  // takes it as a value
  CHECK(has(keys, "distributed.autocast_dtype"));
  keys = found("accumulation");
  REQUIRE(!keys.empty());
  CHECK(keys[0] == "step_scheduler.global_batch_size");
  CHECK(found("cosine") == std::vector<std::string>{"lr_scheduler.lr_decay_style"});
  CHECK(found("Activation Checkpointing")[0] == "distributed.activation_checkpointing");
  CHECK(has(found("momentum"), "optimizer.momentum"));
  CHECK(!has(found("len"), "dataset.kind"));
  Matches told = search_options("optimizer.learning_rate", strategies());
  CHECK(told.told == "optimizer.learning_rate is optimizer.lr here");
  REQUIRE(!told.keys.empty());
  CHECK(told.keys[0].key == "optimizer.lr");
  CHECK(search_options("wandb", strategies()).told.find("no counterpart") != std::string::npos);
  for (const char* nothing : {"zebra", " ", "", "\x01\xff"}) {
    INFO(nothing);
    CHECK(search_options(nothing, strategies()).empty());
  }
}

TEST_CASE(
    "what can be explained exactly is not searched for, and nothing at all names the nearest") {
  for (const char* exact :
       {"", "optimizer.lr", "lr", "optimizer", "E0203", "distributed.fsdp2", "sequence_parallel"})
    CHECK(is_explained(exact, strategies()));
  for (const char* word : {"name", "bf16", "seq_len", "activation", "sequence_paralel"})
    CHECK(!is_explained(word, strategies()));
  try {
    explain("sequence_paralel", strategies());
    FAIL("it was explained");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    CHECK(helps(error).find("did you mean sequence_parallel?") != std::string::npos);
  }
}

}  // namespace foreign_test
