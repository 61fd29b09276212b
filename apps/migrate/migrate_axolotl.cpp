// axolotl's YAML: arguments of Hugging Face's Trainer under names of its own, a list of data sets,
// and adapters that one word switches on.
#include <algorithm>

#include "apps/migrate/trainer_args.h"
#include "sdk/base/words.h"

namespace meshwright::config {
namespace {

constexpr TrainerArgs kAxolotlArgs = {.program = "axolotl",
                                      .optimizer = "optimizer",
                                      .scheduler = "lr_scheduler",
                                      .local_batch = "micro_batch_size",
                                      .epochs = "num_epochs",
                                      .lr = 0,
                                      .batch = 1,
                                      .rounds = 1,
                                      .style = "cosine",
                                      .saves_by_epoch = true,
                                      .kept = 4,
                                      .share = 0.03,
                                      .rank = 8,
                                      .alpha = 8,
                                      .dropout = 0};

void axolotl_model(Migrator& m) {
  Leaf *base = m.take("base_model"), *words = m.take("tokenizer_config"),
       *look = m.take("chat_template");
  if (is_text(base))
    m.set("model.pretrained", Value(local_folder(base->value.text)), *base,
          download(base->value.text));
  if (is_text(words))
    m.set("dataset.jsonl.tokenizer", Value(local_folder(words->value.text)), *words,
          download(words->value.text));
  if (is_text(look) && text::normal(look->value.text) == "chatml")
    m.set("dataset.jsonl.chat_template", Value("chatml"), *look);
  else if (is_said(look) && text::normal(look->value.text) != "tokenizer_default")
    m.left(*look,
           "axolotl's own template of that name; the folder's counts here, or the file that "
           "dataset.jsonl.chat_template names");
}

// What it trains on where that is not the next token of text.
void axolotl_purpose(Migrator& m) {
  Leaf *rl = m.take("rl"), *reward = m.take("reward_model");
  Leaf* scored = m.take("process_reward_model");
  for (const Leaf* leaf : {rl, reward, scored})
    if (is_said(leaf) && !is_false(leaf))
      m.want(leaf->key,
             "it trains on preferences or rewards there; `meshwright train` on the next "
             "token of text: only what both have in common is here");
  if (const Leaf* images = m.find("processor_type"); is_text(images))
    m.want("processor_type", "it reads images or sounds there; here text alone trains");
}

Leaf* axolotl_adapters(Migrator& m) {
  Leaf *kind = m.take("adapter"), *start = m.find("lora_model_dir");
  const std::string name = is_text(kind) ? text::normal(kind->value.text) : "";
  Leaf* on = name == "lora" || name == "qlora" ? kind : nullptr;
  if (name == "qlora")
    m.left(*kind, "the base has 4 bits there, and here the dtype that lora.base_dtype says");
  else if (on == nullptr && is_said(kind))
    m.left(*kind, "adapters here are low-rank ones: see lora.r");
  if (on != nullptr && is_text(start) && !is_path(start->value.text)) {
    start->used = true;
    m.left(*start, "see lora.adapter: a folder of this machine; " + download(start->value.text));
  }
  trainer_adapters(m, kAxolotlArgs, on);
  return on;
}

// What an item of `datasets` says that its columns and roles here do not.
void about_rows(Migrator& m, const Value& rows, const Leaf& from) {
  const std::string own = "dataset.jsonl.";
  for (const Entry& entry : rows.entries) {
    const Leaf part{from.key + "." + entry.key, entry.place, entry.value};
    const std::string text = text::normal(entry.value.text);
    auto is = [&](const char* key) { return entry.key == key; };
    if (is_empty(entry.value) || is("path") || is("data_files") || is("ds_type") || is("name"))
      continue;
    if (is("split")) {
      if (text.find('[') != std::string::npos)
        m.left(part, "see dataset.path: name the files of that part");
    } else if (is("type") && entry.value.kind == Value::Kind::string) {
      if (text.starts_with("chat_template"))
        m.set(own + "format", Value("messages"), from, "what rows of that type hold");
      else if (text == "completion" || text == "pretrain")
        m.set(own + "format", Value("text"), from, "what rows of that type hold");
      else
        m.left(
            part,
            "here the columns of the rows say it: Alpaca's, questions with answers and ShareGPT's "
            "are known, others are named in dataset.jsonl.fields");
    } else if (is("field_messages")) {
      if (text != "messages" && text != "conversations" &&
          !m.set_fields("dataset", {{"messages", entry.value.text}}, from))
        m.left(part, "rows here have messages or conversations: rename the column");
    } else if (is("field") || is("text_column")) {
      if (text != "text" && !m.set_fields("dataset", {{"text", entry.value.text}}, from))
        m.left(part, "rows here have text: rename the column");
    } else if (is("message_property_mappings")) {
      for (const Entry& column : entry.value.entries) {
        const std::string name = column.value.text;
        const bool known = column.key == "role"      ? name == "role" || name == "from"
                           : column.key == "content" ? name == "content" || name == "value"
                                                     : name == column.key;
        if (!known)
          m.left({part.key + "." + column.key, column.place, column.value},
                 "messages here have role and content, or from and value");
      }
    } else if (is("roles_to_train") && items_of(entry.value).size() == 1 &&
               items_of(entry.value)[0].text == "assistant") {
      m.set(own + "train_on", Value("assistant"), from);
    } else if (is("chat_template") && text == "tokenizer_default") {
      continue;
    } else {
      m.left(part, "nothing of [dataset.jsonl] corresponds");
    }
  }
}

// The files of an item: a path of its own, or those that a reader like "json" is given.
Value files_of(const Value& rows) {
  const Entry *path = rows.find("path"), *files = rows.find("data_files");
  if (files == nullptr || is_empty(files->value))
    return path == nullptr ? list_of({}) : path->value;
  const bool reader = path == nullptr || path->value.text == "json" ||
                      path->value.text == "jsonl" || !is_path(path->value.text);
  if (reader && path != nullptr && path->value.text != "json" && path->value.text != "jsonl")
    return path->value;  // files of a name on the hub
  std::vector<Value> all = items_of(files->value);
  if (!reader)
    for (Value& one : all) one.text = path->value.text + "/" + one.text;
  return list_of(std::move(all));
}

bool rows_of_list(Migrator& m, const char* table, Leaf& list) {
  const std::vector<Value> all = items_of(list.value);
  if (all.size() != 1) {
    m.set(std::string(table) + ".plugin", Value("jsonl"), list, "rows of JSON Lines");
    m.left(list, std::string(table) +
                     ".path names one file, folder or pattern; several are [[dataset.mix]] here, "
                     "and there are " +
                     std::to_string(all.size()));
    return false;
  }
  const Value one = all[0];
  return rows_of(m, table, one.is_table() ? files_of(one) : one, list);
}

void axolotl_data(Migrator& m) {
  Leaf *sets = m.take("datasets"), *stream = m.take("pretraining_dataset"),
       *tests = m.take("test_datasets"), *share = m.find("val_set_size"),
       *packs = m.take("sample_packing"), *in_order = m.take("sample_packing_sequentially"),
       *mixed = m.take("shuffle_merged_datasets"), *longer = m.take("excess_length_strategy"),
       *inputs = m.take("train_on_inputs");
  Leaf* rows = is_said(sets) ? sets : is_said(stream) ? stream : nullptr;
  const std::string own = "dataset.jsonl.";
  if (rows != nullptr) {
    rows_of_list(m, "dataset", *rows);
    const std::vector<Value> all = items_of(rows->value);
    if (all.size() == 1 && all[0].is_table()) about_rows(m, all[0], *rows);
  }
  if (is_said(tests)) rows_of_list(m, "validation_dataset", *tests);
  if (is_number(share) && as_number(share->value) == 0) share->used = true;
  if (is_true(inputs))
    m.set(own + "train_on", Value("all"), *inputs);
  else if (is_false(inputs))
    m.set(own + "train_on", Value("assistant"), *inputs);
  if (is_true(packs)) {
    const bool ordered = is_true(in_order);
    m.set(own + "packing", Value(ordered ? "sequential" : "bfd"), *packs,
          ordered ? "" : "the first pack with room there, the fullest here");
  } else {
    m.assume(own + "packing", Value("none"), "one row a sample without sample_packing");
  }
  const std::string kept = is_text(longer) ? text::normal(longer->value.text) : "drop";
  if (kept == "truncate")
    m.set(own + "truncate", Value("right"), *longer);
  else if (kept == "drop" && longer != nullptr)
    m.set(own + "truncate", Value("drop"), *longer);
  else
    m.assume(own + "truncate", Value("drop"), "axolotl's default");
  if (kept == "raise") m.left(*longer, "see dataset.jsonl.truncate: right, left or drop");
  if (is_false(mixed))
    m.left(*mixed,
           "it is about whole files; rows are drawn in random order there, and here unless "
           "dataset.shuffle is false");
}

// Data-parallel ranks that the file says, at least one.
int64_t axolotl_distribution(Migrator& m) {
  Leaf *shards = m.take("dp_shard_size"), *copies = m.take("dp_replicate_size"),
       *sharded = m.take("fsdp");
  auto count = [](const Leaf* leaf) {
    return is_integer(leaf) ? std::clamp<int64_t>(leaf->value.integer, 1, 1 << 20) : 1;
  };
  if (is_integer(copies)) m.set("distributed.dp_replicate_size", copies->value, *copies);
  if (is_integer(shards) && count(shards) * count(copies) > 1)
    m.set("distributed.dp_size", integer_value(count(shards) * count(copies)), *shards);
  auto switched = [&](const char* key, const char* older, auto&& act) {
    for (const char* name : {key, older})
      if (Leaf* leaf = m.take(std::string("fsdp_config.") + name); leaf != nullptr) act(*leaf);
  };
  const std::string reshard = "distributed.fsdp2.reshard_after_forward";
  if (is_said(sharded)) {
    m.set("distributed.strategy", Value("fsdp2"), *sharded);
    for (const Value& one : items_of(sharded->value)) {
      if (one.text == "shard_grad_op") m.set(reshard, boolean_value(false), *sharded);
      if (one.text == "offload") m.set("distributed.fsdp2.offload_policy", Value("cpu"), *sharded);
      if (one.text.starts_with("hybrid_"))
        m.left(*sharded,
               "see distributed.dp_replicate_size: how many copies of the model there are");
    }
  }
  switched("reshard_after_forward", "fsdp_reshard_after_forward",
           [&](Leaf& leaf) { m.set(reshard, leaf.value, leaf); });
  switched("offload_params", "fsdp_offload_params", [&](Leaf& leaf) {
    m.set("distributed.fsdp2.offload_policy", Value(is_true(leaf.value) ? "cpu" : "none"), leaf);
  });
  switched("activation_checkpointing", "fsdp_activation_checkpointing", [&](Leaf& leaf) {
    m.set("distributed.activation_checkpointing", Value(is_true(leaf.value) ? "full" : "none"),
          leaf);
  });
  switched("sharding_strategy", "fsdp_sharding_strategy", [&](Leaf& leaf) {
    const std::string how = text::normal(leaf.value.text);
    if (how == "shard_grad_op")
      m.set(reshard, boolean_value(false), leaf);
    else if (how != "full_shard")
      m.left(leaf, "see distributed.strategy and distributed.dp_replicate_size");
  });
  return count(shards) * count(copies);
}

}  // namespace

void from_axolotl(Migrator& m) {
  axolotl_purpose(m);
  axolotl_model(m);
  const Leaf* adapters = axolotl_adapters(m);
  trainer_optimizer(m, kAxolotlArgs);
  const std::optional<int64_t> steps = trainer_steps(m, kAxolotlArgs);
  trainer_schedule(m, kAxolotlArgs, steps);
  const int64_t ranks = axolotl_distribution(m);
  trainer_batches(m, kAxolotlArgs, ranks);
  axolotl_data(m);
  trainer_saves(m, kAxolotlArgs, steps, m.is_set("validation_dataset.path"));
  const Leaf* said = m.find("bf16");
  const bool other = said != nullptr || is_true(m.find("fp16"));
  const Leaf* narrow = trainer_precision(m, true);
  // Adapters stay in float32 there, too; a whole model is loaded in what it computes in.
  const std::string why = "the weights themselves are loaded in it there; \"float32\" keeps more";
  if (adapters == nullptr && narrow != nullptr && !is_true(m.find("fp16")))
    m.set("model.torch_dtype", Value("bfloat16"), *narrow, why);
  else if (adapters == nullptr && !other)
    m.assume("model.torch_dtype", Value("bfloat16"), "axolotl's default: " + why);
  if (Leaf* again = m.find("gradient_checkpointing"); is_text(again)) {
    again->used = true;
    m.set("distributed.activation_checkpointing", Value("full"), *again,
          "what is kept of a layer goes to the host there");
  }
  if (Leaf* tf32 = m.find("tf32"); is_text(tf32)) {
    tf32->used = true;
    m.set("run.float32_matmul_precision", Value("high"), *tf32, "where the device has it");
  }
  if (Leaf* code = m.take("plugins"); is_said(code))
    m.left(*code, "names Python code, which is not run here");
  m.leave("liger_", "use_liger_kernel");
  trainer_other_keys(m);
}

}  // namespace meshwright::config
