// TRL's arguments as `trl sft --config` reads them: those of SFTConfig, ScriptArguments and
// ModelConfig in one YAML file. Recipes of the alignment handbook are the same with older names.
#include <algorithm>

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

void trl_data(Migrator& m) {
  const std::string own = "dataset.jsonl.";
  Leaf *name = m.take("dataset_name"), *several = m.take("datasets"), *packs = m.take("packing"),
       *how = m.take("packing_strategy"), *kept = m.take("truncation_mode"),
       *answers = m.take("assistant_only_loss"), *completions = m.take("completion_only_loss"),
       *look = m.take("chat_template_path"), *inline_look = m.take("chat_template"),
       *column = m.take("dataset_text_field"), *mixed = m.take("shuffle_dataset"),
       *longest = m.find("max_length"), *part = m.find("dataset_train_split"),
       *part_of_tests = m.find("dataset_test_split");
  if (longest == nullptr) longest = m.find("max_seq_length");
  bool local = false;
  if (is_said(several)) {
    const std::vector<Value> all = items_of(several->value);
    const Entry* path = all.size() == 1 && all[0].is_table() ? all[0].find("path") : nullptr;
    const Entry* files = path != nullptr ? all[0].find("data_files") : nullptr;
    if (path != nullptr)
      local = rows_of(m, "dataset",
                      files != nullptr && path->value.text == "json" ? files->value : path->value,
                      *several);
    else
      m.left(*several,
             "dataset.path names one file, folder or pattern; several are [[dataset.mix]] here, "
             "and there are " +
                 std::to_string(all.size()));
    if (is_said(name)) m.left(*name, "datasets comes before it there");
  } else if (is_said(name)) {
    local = rows_of(m, "dataset", name->value, *name);
  }
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
  else if (is_true(completions))
    m.set(own + "train_on", Value("assistant"), *completions);
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
  if (mixed != nullptr && !is_true(mixed)) mixed->used = true;  // rows are drawn at random anyway
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
