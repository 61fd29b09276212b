// TRL's arguments as `trl sft --config` reads them: those of SFTConfig, ScriptArguments and
// ModelConfig in one YAML file. Recipes of the alignment handbook are the same with older names.
#include <algorithm>

#include "apps/migrate/data_sets.h"
#include "apps/migrate/trainer_args.h"
#include "sdk/base/words.h"

namespace meshwright::config {
namespace {

constexpr TrainerArgs kTrlArgs = {.program = "TRL",
                                  .optimizer = "optim",
                                  .scheduler = "lr_scheduler_type",
                                  .local_batch = "per_device_train_batch_size",
                                  .epochs = "num_train_epochs",
                                  .lr = 2e-5,
                                  .batch = 8,
                                  .rounds = 3,
                                  .style = "linear",
                                  .saves_by_epoch = false,
                                  .kept = 0,
                                  .share = 0,
                                  .rank = 16,
                                  .alpha = 32,
                                  .dropout = 0.05};

// Whether it trains on preferences or rewards.
bool prefers(Migrator& m) {
  bool out = false;
  if (Leaf* beta = m.take("beta"); beta != nullptr) {
    m.left(*beta, "it is about preferences, which are not learnt");
    out = true;
  }
  for (const char* key : {"max_prompt_length", "max_completion_length", "num_generations",
                          "reward_model_path", "reward_funcs", "precompute_ref_log_probs"})
    out = out || m.find(key) != nullptr;
  if (Leaf* loss = m.take("loss_type");
      is_text(loss) && loss->value.text != "nll" && loss->value.text != "chunked_nll") {
    m.left(*loss, "the loss is the mean cross-entropy of the next token");
    out = out || loss->value.text != "dft";
  }
  return out;
}

void trl_model(Migrator& m) {
  Leaf *base = m.take("model_name_or_path"), *dtype = m.take("dtype"),
       *older = m.take("torch_dtype");
  if (is_text(base))
    m.set("model.pretrained", Value(local_folder(base->value.text)), *base,
          download(base->value.text));
  if (dtype == nullptr) dtype = older;
  if (is_text(dtype) && text::normal(dtype->value.text) == "auto")
    m.set("model.torch_dtype", Value("bfloat16"), *dtype,
          "that of the folder's config.json there, mostly bfloat16; \"float32\" keeps more");
  else if (is_text(dtype))
    m.set("model.torch_dtype", dtype->value, *dtype);
}

// The columns that rows are read by here, whatever else they have.
constexpr std::string_view kColumns[] = {"messages", "prompt", "completion",          "text",
                                         "tools",    "system", "chat_template_kwargs"};

// What an item of a list says beside where its rows are. `share`: the key of its part.
void about_set(Migrator& m, const Value& item, const Leaf& from, const char* share, DataSet& out) {
  for (const Entry& entry : item.entries) {
    const Leaf part{from.key + "." + entry.key, entry.place, entry.value};
    auto is = [&](const char* key) { return entry.key == key; };
    if (is_empty(entry.value) || is("path") || is("id") || is("data_files") || is(share)) continue;
    if (is("name") || is("config") || is("split")) {
      if (!out.files.empty() && entry.value.text != "train")
        m.left(part, "files of this machine are read whole");
    } else if (is("columns")) {
      const std::vector<Value> names = items_of(entry.value);
      if (std::ranges::any_of(names, [](const Value& one) { return one.text == "messages"; }))
        out.wishes["format"] = {part, Value("messages"), "the columns that are kept there"};
      else if (std::ranges::any_of(names, [](const Value& one) {
                 return std::ranges::find(kColumns, one.text) == std::end(kColumns);
               }))
        m.left(part, "here the columns of the rows say what they are: see dataset.jsonl.fields");
    } else if (is("data_dir")) {
      m.left(part, "see dataset.path: name the folder itself");
    } else {
      m.left(part, "nothing of [dataset] corresponds");
    }
  }
}

// `share`: what of a set is read, a part of the joined sets ("fraction") or of itself ("weight").
bool trl_sets(Migrator& m, const Leaf& list, const std::string& share) {
  const std::vector<Value> items = items_of(list.value);
  const bool parts = share == "fraction", many = items.size() > 1;
  std::vector<DataSet> sets;
  for (const Value& item : items) {
    DataSet one = data_set_of(item);
    const Entry* said = item.find(share);
    const bool counts = said != nullptr && is_number(said->value) && as_number(said->value) > 0;
    if (counts && parts && many) one.weight = as_number(said->value);
    if (counts && !parts && (many || as_number(said->value) != 1))
      one.epochs = as_number(said->value);
    if (said != nullptr && !is_empty(said->value) && !counts) {
      m.left({list.key + "." + share, said->place, said->value}, "a part is a number above 0");
      if (is_number(said->value)) continue;  // nothing is read of it
    }
    about_set(m, item, list, share.c_str(), one);
    sets.push_back(std::move(one));
  }
  if (sets.empty()) return false;
  const bool weighed =
      std::ranges::all_of(sets, [](const DataSet& one) { return one.weight.has_value(); });
  if (!weighed)
    for (DataSet& one : sets)
      if (one.weight) {
        m.left(list, "fraction has to be said of all of them or of none");
        break;
      }
  return read_data_sets(
      m, "dataset", std::move(sets), list,
      weighed ? "an epoch ends before any is read twice, as there, and the next one reads other "
                "rows; shares are of samples"
      : parts ? "each is read once an epoch, as TRL reads what it joins"
              : "that part of it is read in an epoch, of which the next one reads other rows");
}

// "dataset_mixer: {org/name: 0.5}", an older form of dataset_mixture.
bool trl_mixer(Migrator& m) {
  Value items = list_of({});
  const std::string table = "dataset_mixer.";
  Leaf* first = nullptr;
  for (Leaf* leaf : m.take_table(table)) {
    if (first == nullptr) first = leaf;
    Value item;
    item.place = leaf->place;
    // In quotes, unless it is a plain word.
    const std::string name = leaf->key.substr(table.size());
    const std::optional<Value> quoted = name[0] == '"' ? parse_toml_value(name) : std::nullopt;
    item.entries.push_back({"id", leaf->place, Value(quoted ? quoted->text : name)});
    item.entries.push_back({"weight", leaf->place, leaf->value});
    items.items.push_back(std::move(item));
  }
  if (first == nullptr) return false;
  if (Leaf* splits = m.take("dataset_splits"); is_said(splits))
    m.left(*splits, "see dataset.path and validation_dataset.path: name the files of each part");
  first->key = "dataset_mixer";
  first->value = std::move(items);
  return trl_sets(m, *first, "weight");
}

// Where the rows are: true where they are files of this machine alone.
bool trl_rows(Migrator& m) {
  Leaf *name = m.take("dataset_name"), *several = m.take("datasets"),
       *mixture = m.take("dataset_mixture.datasets"), *seed = m.take("dataset_mixture.seed"),
       *tests = m.take("dataset_mixture.test_split_size");
  if (seed != nullptr && is_said(mixture))
    m.left(*seed, "see run.seed: the order of all samples follows from it");
  if (is_said(tests))
    m.left(*tests, "see validation_dataset.path: keep rows apart in a file of their own");
  if (is_said(several) || is_said(mixture)) {
    if (is_said(name)) m.left(*name, "the list of data sets comes before it there");
    if (!is_said(several)) return trl_sets(m, *mixture, "weight");
    if (is_said(mixture)) m.left(*mixture, "datasets counts in its place");
    return trl_sets(m, *several, "fraction");
  }
  if (is_said(name)) return read_data_sets(m, "dataset", {data_set_of(name->value)}, *name, "");
  return trl_mixer(m);
}

void trl_data(Migrator& m) {
  const std::string own = "dataset.jsonl.";
  Leaf *packs = m.take("packing"), *how = m.take("packing_strategy"),
       *kept = m.take("truncation_mode"), *answers = m.take("assistant_only_loss"),
       *completions = m.take("completion_only_loss"), *look = m.take("chat_template_path"),
       *inline_look = m.take("chat_template"), *column = m.take("dataset_text_field"),
       *mixed = m.take("shuffle_dataset"), *longest = m.find("max_length"),
       *part = m.find("dataset_train_split"), *part_of_tests = m.find("dataset_test_split");
  if (longest == nullptr) longest = m.find("max_seq_length");
  const bool local = trl_rows(m);
  // Files of this machine are read whole.
  if (local && part != nullptr && part->value.text == "train") part->used = true;
  if (part_of_tests != nullptr && part_of_tests->value.text == "test") part_of_tests->used = true;
  if (is_text(column) && column->value.text != "text" &&
      !m.set_fields("dataset", {{"text", column->value.text}}, *column))
    m.left(*column, "rows here have text: rename the column");

  const std::string strategy = is_text(how) ? text::normal(how->value.text) : "bfd";
  if (is_true(packs)) {
    const std::string why = strategy == "wrapped"
                                ? "samples are cut from one stream there, and hold whole rows here"
                            : strategy == "bfd_split" || strategy == "bfd_requeue"
                                ? "longer rows are split there, and cut here"
                            : strategy == "bfd" ? ""
                                                : "packs are filled in another order there";
    m.set(own + "packing", Value(strategy == "wrapped" ? "sequential" : "bfd"), *packs, why);
  } else {
    m.assume(own + "packing", Value("none"), "one row a sample without packing");
    if (is_said(how)) m.left(*how, "it counts with packing alone");
  }
  if (is_text(kept) && text::normal(kept->value.text) == "keep_end")
    m.set(own + "truncate", Value("left"), *kept);
  else if (is_said(kept))
    m.set(own + "truncate", Value("right"), *kept);
  if (longest == nullptr)
    m.assume("dataset.seq_len", integer_value(1024), "TRL's default");
  else if (is_empty(longest->value))
    m.want("dataset.seq_len", "tokens a sample; nothing is cut there");
  if (longest != nullptr && is_empty(longest->value)) longest->used = true;

  if (is_true(answers))
    m.set(own + "train_on", Value("assistant"), *answers);
  else if (is_true(completions) || is_false(completions))
    m.set(own + "train_on", Value(is_true(completions) ? "assistant" : "all"), *completions);
  else
    m.assume(own + "train_on", Value("all"),
             "TRL's default for chats; \"assistant\" for rows of prompt and completion");
  if (is_text(look) && is_path(look->value.text))
    m.set(own + "chat_template", look->value, *look);
  else if (is_said(look))
    m.left(*look, "see dataset.jsonl.chat_template: a file, or the folder's own template");
  if (is_text(inline_look) && inline_look->value.text.find('{') == std::string::npos)
    m.set(own + "chat_template", inline_look->value, *inline_look);
  else if (is_said(inline_look))
    m.left(*inline_look, "dataset.jsonl.chat_template names a file: save it as one");
  // Rows are drawn at random there, whatever this says.
  if (is_true(mixed)) m.set("dataset.shuffle", boolean_value(true), *mixed);
}

}  // namespace

void from_trl(Migrator& m) {
  m.add_default("gradient_checkpointing", "true");
  TrainerArgs args = kTrlArgs;
  if (prefers(m)) {
    args.lr = 0;
    m.want("recipe",
           "it trains on preferences or rewards there; `meshwright train` on the next "
           "token of text: only what both have in common is here");
  }
  trl_model(m);
  Leaf* adapters = m.take("use_peft");
  trainer_adapters(m, args, is_true(adapters) ? adapters : nullptr);
  trainer_optimizer(m, args);
  const std::optional<int64_t> steps = trainer_steps(m, args);
  trainer_schedule(m, args, steps);
  trainer_batches(m, args, 1);
  trl_data(m);
  trainer_saves(m, args, steps, false);
  trainer_precision(m, true);
  trainer_other_keys(m);
}

}  // namespace meshwright::config
