// axolotl's YAML: arguments of Hugging Face's Trainer under names of its own, a list of data sets,
// and adapters that one word switches on.
#include <algorithm>
#include <boost/algorithm/string/replace.hpp>
#include <map>
#include <string>

#include "apps/migrate/data_sets.h"
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
  if (Leaf* base = m.take("base_model"); is_text(base))
    m.set("model.pretrained", Value(local_folder(base->value.text)), *base,
          download(base->value.text));
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

// Its `format` with the columns' own names: where `input` is empty no_input_format counts there,
// and here the text in front of it is left out.
std::string with_columns(std::string format, const std::string& instruction,
                         const std::string& input) {
  boost::replace_all(format, "{instruction}", "{" + instruction + "}");
  boost::replace_all(format, "{input}", "{" + input + "?}");
  return format;
}

// A `type` that is a table: axolotl's UserDefinedDatasetConfig, whose defaults these are. Gives
// dataset.jsonl.fields.
Value own_columns(Migrator& m, const Leaf& type) {
  std::map<std::string, std::string> says = {{"field_instruction", "instruction"},
                                             {"field_input", "input"},
                                             {"field_output", "output"},
                                             {"format", "{instruction} {input} "},
                                             {"no_input_format", "{instruction} "}};
  for (const Entry& entry : type.value.entries) {
    const Leaf part{type.key + "." + entry.key, entry.place, entry.value};
    if (const auto known = says.find(entry.key);
        known != says.end() && entry.value.kind == Value::Kind::string)
      known->second = entry.value.text;
    else if (!is_empty(entry.value))
      m.left(part, "see dataset.jsonl.fields: a row's prompt is a text with columns in it");
  }
  if (const Entry* bare = type.value.find("no_input_format");
      bare != nullptr && says["format"].find("{input}") != std::string::npos)
    m.left({type.key + ".no_input_format", bare->place, bare->value},
           "a row without input has its prompt by format here, without the text in front of it");
  Value fields;
  fields.entries.push_back(
      {"prompt",
       {},
       Value(with_columns(says["format"], says["field_instruction"], says["field_input"]))});
  fields.entries.push_back({"completion", {}, Value(says["field_output"])});
  return fields;
}

// What an item of `datasets` says that its columns and roles here do not.
void about_rows(Migrator& m, const std::string& table, const Value& rows, const Leaf& from,
                DataSet& out) {
  const bool columns = m.knows(table + ".jsonl.fields");
  for (const Entry& entry : rows.entries) {
    const Leaf part{from.key + "." + entry.key, entry.place, entry.value};
    const std::string text = text::normal(entry.value.text);
    auto is = [&](const char* key) { return entry.key == key; };
    auto wish = [&](const char* key, Value value, const char* why = "") {
      out.wishes.insert_or_assign(key, DataSet::Wish{part, std::move(value), why});
    };
    auto field = [&](const char* name) {
      Value named;
      named.entries.push_back({name, {}, Value(entry.value.text)});
      wish("fields", named);
    };
    if (is_empty(entry.value) || is("path") || is("data_files") || is("ds_type") || is("name"))
      continue;
    if (is("split")) {
      if (!out.files.empty() && text.find('[') != std::string::npos)
        m.left(part, "see " + table + ".path: name the files of that part");
    } else if (is("type") && entry.value.is_table() && columns) {
      wish("fields", own_columns(m, part));
      wish("format", Value("prompt_completion"), "prompts there have no template around them");
    } else if (is("type") && entry.value.kind == Value::Kind::string) {
      if (out.text) continue;
      if (text.starts_with("chat_template"))
        wish("format", Value("messages"), "what rows of that type hold");
      else
        m.left(
            part,
            "here the columns of the rows say it: Alpaca's, questions with answers and ShareGPT's "
            "are known, others are named in dataset.jsonl.fields");
    } else if (is("field_messages")) {
      if (text == "messages" || text == "conversations") continue;
      if (columns)
        field("messages");
      else
        m.left(part, "rows here have messages or conversations: rename the column");
    } else if (is("field") || is("text_column")) {
      if (text == "text") continue;
      if (out.text)
        wish("text_field", Value(entry.value.text));
      else if (columns)
        field("text");
      else
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
      wish("train_on", Value("assistant"));
    } else if (is("chat_template") && text == "chatml") {
      wish("chat_template", Value("chatml"));
    } else if (is("chat_template") && text == "tokenizer_default") {
      // Only where the file says another one for all.
      if (const Leaf* all = m.find("chat_template");
          is_text(all) && text::normal(all->value.text) != text)
        wish("chat_template", Value("auto"));
    } else {
      m.left(part, "nothing of [dataset.jsonl] corresponds");
    }
  }
}

bool is_type(const Value& item, std::initializer_list<std::string_view> types) {
  const Entry* type = item.find("type");
  return type != nullptr && std::ranges::find(types, type->value.text) != types.end();
}

// How documents share samples, in [dataset.text].
struct TextPacks {
  const char *packing, *why;
  const Leaf* from;  // what says so; nullptr: nothing does
};
constexpr const char* kPieces =
    "documents of more than sequence_len tokens are cut in pieces there, too; there the first "
    "token of a piece is never learnt, and what is behind 64 pieces is left out";

// All sets of a list; `packs`: how those of texts are packed.
bool axolotl_sets(Migrator& m, const std::string& table, const Leaf& list, bool stream,
                  const TextPacks& packs, const std::string& why) {
  std::vector<Value> items = items_of(list.value);
  if (stream && items.size() > 1) {
    m.left(list, "the first of them alone is read there");
    items.resize(1);
  }
  std::vector<DataSet> sets;
  for (const Value& item : items) {
    DataSet one = data_set_of(item);
    one.text = m.knows(table + ".text.packing") &&
               (is_type(item, {"completion", "pretrain"}) ||
                (stream && (!item.is_table() || item.find("type") == nullptr)));
    if (item.is_table()) about_rows(m, table, item, list, one);
    sets.push_back(std::move(one));
  }
  const bool local = read_data_sets(m, table, sets, list, why);
  if (std::ranges::none_of(sets, &DataSet::text)) return local;
  m.set(table + ".text.packing", Value(packs.packing), packs.from != nullptr ? *packs.from : list,
        packs.why);
  // Texts of the validation are read by the tokenizer of [dataset] where that has one.
  if (const Leaf* words = m.find("tokenizer_config");
      is_text(words) && !m.is_set("dataset.tokenizer"))
    m.set(table + ".tokenizer", Value(local_folder(words->value.text)), *words,
          download(words->value.text));
  return local;
}

// How the rows of these tables are read.
void axolotl_rows(Migrator& m, const std::vector<std::string>& tables, const Leaf* packs,
                  const Leaf* in_order, const Leaf* inputs) {
  Leaf *longer = m.take("excess_length_strategy"), *words = m.take("tokenizer_config"),
       *look = m.take("chat_template");
  const std::string template_name = is_text(look) ? text::normal(look->value.text) : "",
                    kept = is_text(longer) ? text::normal(longer->value.text) : "drop";
  for (const std::string& table : tables) {
    const std::string own = table + ".jsonl.";
    const Leaf* packed = packs;
    if (table == "validation_dataset")
      if (const Leaf* apart = m.take("eval_sample_packing"); is_said(apart)) packed = apart;
    if (is_text(words))
      m.set(own + "tokenizer", Value(local_folder(words->value.text)), *words,
            download(words->value.text));
    if (template_name == "chatml") m.set(own + "chat_template", Value("chatml"), *look);
    if (is_true(inputs))
      m.set(own + "train_on", Value("all"), *inputs);
    else if (is_false(inputs))
      m.set(own + "train_on", Value("assistant"), *inputs);
    if (is_true(packed)) {
      const bool ordered = is_true(in_order);
      m.set(own + "packing", Value(ordered ? "sequential" : "bfd"), *packed,
            ordered ? "" : "the first pack with room there, the fullest here");
    } else {
      m.assume(own + "packing", Value("none"), "one row a sample without sample_packing");
    }
    if (kept == "truncate")
      m.set(own + "truncate", Value("right"), *longer);
    else if (kept == "drop" && longer != nullptr)
      m.set(own + "truncate", Value("drop"), *longer);
    else
      m.assume(own + "truncate", Value("drop"), "axolotl's default");
  }
  if (kept == "raise") m.left(*longer, "see dataset.jsonl.truncate: right, left or drop");
  if (is_said(look) && template_name != "chatml" && template_name != "tokenizer_default")
    m.left(*look,
           "axolotl's own template of that name; the folder's counts here, or the file that "
           "dataset.jsonl.chat_template names");
}

void axolotl_data(Migrator& m) {
  Leaf *sets = m.take("datasets"), *stream = m.take("pretraining_dataset"),
       *tests = m.take("test_datasets"), *share = m.find("val_set_size"),
       *packs = m.take("sample_packing"), *in_order = m.take("sample_packing_sequentially"),
       *mixed = m.take("shuffle_merged_datasets"), *inputs = m.take("train_on_inputs");
  const TextPacks pieces{is_true(packs) ? is_true(in_order) ? "sequential" : "bfd" : "none",
                         kPieces, packs};
  const std::string together =
      "each is read once an epoch, as axolotl reads what it joins" +
      std::string(is_true(packs) ? "; a sample has rows of one alone" : "");
  if (is_said(sets)) {
    axolotl_sets(m, "dataset", *sets, false, pieces, together);
    if (is_said(stream)) m.left(*stream, "datasets are read in its place here");
  } else if (is_said(stream)) {
    const Leaf* sees = m.take("pretrain_multipack_attn");
    const bool apart = is_true(packs) && !is_false(sees);
    if (sees != nullptr && is_true(packs))
      m.set("dataset.text.attention", Value(apart ? "document" : "sample"), *sees);
    else if (is_said(sees))
      m.left(*sees, "it counts with sample_packing alone");
    axolotl_sets(m, "dataset", *stream, true,
                 {apart ? "bfd" : "stream",
                  apart ? "packs are filled in another order there, and pieces of longer documents "
                          "have 256 tokens in common"
                        : "there a document that does not fit begins the next sample, and what is "
                          "behind sequence_len of it is left out; here all is one stream",
                  packs},
                 together);
  }
  if (is_said(tests)) {
    axolotl_sets(
        m, "validation_dataset", *tests, false, pieces,
        "a loss of its own here, and validation_loss is their mean; there all are one set");
    if (const Leaf* length = m.find("sequence_len"); is_integer(length))
      m.assume("validation_dataset.seq_len", length->value, "as the data that train");
  }
  if (is_number(share) && as_number(share->value) == 0) share->used = true;
  // Of texts alone the options of rows say nothing.
  std::vector<std::string> of_rows;
  if (m.is_set("dataset.plugin") || !(is_said(sets) || is_said(stream)))
    of_rows.emplace_back("dataset");
  if (m.is_set("validation_dataset.plugin")) of_rows.emplace_back("validation_dataset");
  if (!of_rows.empty()) {
    axolotl_rows(m, of_rows, packs, in_order, inputs);
  } else {
    m.drop({"tokenizer_config"});
    if (is_said(inputs)) m.left(*inputs, "all of a text is learnt, there, too");
    if (Leaf* look = m.take("chat_template"); is_said(look))
      m.left(*look, "texts have no turns, there, too");
  }
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
  trainer_saves(m, kAxolotlArgs, steps, m.reads("validation_dataset"));
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
