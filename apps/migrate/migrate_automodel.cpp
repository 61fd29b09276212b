// Automodel's YAML: what its keys are here where the table of foreign.cpp cannot say it, and what
// Automodel does where a recipe says nothing.
#include <algorithm>
#include <string>

#include "apps/migrate/migrator.h"
#include "sdk/base/words.h"

namespace meshwright::config {
namespace {

using Choice = Migrator::Choice;

constexpr const char* kAutomodelsOwn = "Automodel's default";

// "AdamW" of "torch.optim.AdamW".
std::string class_of(const Leaf& target) {
  const std::string& path = target.value.text;
  return path.substr(path.find_last_of(".:") + 1);
}

void recipe(Migrator& m) {
  Leaf* leaf = m.find("recipe");
  if (leaf == nullptr) leaf = m.take("recipe._target_");
  if (leaf == nullptr || leaf->value.kind != Value::Kind::string) return;
  const std::string name = class_of(*leaf);
  if (name.find("NextTokenPrediction") == std::string::npos ||
      name.find("Distillation") != std::string::npos)
    m.want("recipe", name +
                         " trains something else than the next token of text, which is what "
                         "`meshwright train` does: only what both have in common is here");
}

void model(Migrator& m) {
  Leaf *target = m.take("model._target_"), *name = m.take("model.pretrained_model_name_or_path");
  m.drop({"model.config._target_", "model.backend._target_"});
  const bool random = target != nullptr && target->value.text.ends_with("from_config");
  if (is_text(name)) {
    std::string folder = local_folder(name->value.text);
    m.set(random ? "model.config" : "model.pretrained",
          Value(random ? folder + "/config.json" : folder), *name, download(name->value.text));
  }
  for (const char* key :
       {"model.config.pretrained_model_name_or_path", "model.config.name_or_path", "model.config"})
    if (Leaf* config = m.take(key); is_text(config) && !m.is_set("model.config"))
      m.set("model.config",
            Value(local_folder(config->value.text) +
                  (config->value.text.ends_with(".json") ? "" : "/config.json")),
            *config, download(config->value.text));
  // "auto" is what the folder's config.json says; of released models that is bfloat16.
  const std::string of_folder =
      "that of the folder's config.json there, mostly bfloat16; \"float32\" keeps more";
  if (Leaf* dtype = m.find("model.torch_dtype");
      dtype != nullptr && (is_empty(dtype->value) || text::normal(dtype->value.text) == "auto")) {
    dtype->used = true;
    m.set("model.torch_dtype", Value("bfloat16"), *dtype, of_folder);
  } else if (target != nullptr && target->value.text.find("NeMoAuto") != std::string::npos) {
    m.assume("model.torch_dtype", Value("bfloat16"),
             random ? std::string(kAutomodelsOwn) : kAutomodelsOwn + (": " + of_folder));
  }
}

// What torch and others do where the recipe says nothing.
struct OptimizerDefaults {
  const char* name;
  double lr, beta2, weight_decay;
};
constexpr OptimizerDefaults kOptimizers[] = {
    {"AdamW", 1e-3, 0.999, 0.01},      {"Adam", 1e-3, 0.999, 0}, {"FusedAdam", 1e-3, 0.999, 0},
    {"FlashAdamW", 1e-3, 0.999, 0.01}, {"SGD", 1e-3, 0.999, 0},  {"AdamWConfig", 1e-4, 0.999, 0.01},
    {"AdamConfig", 1e-4, 0.999, 0.01}, {"Muon", 5e-4, 0.95, 0},  {"NorMuon", 5e-4, 0.95, 0},
    {"Dion", 5e-4, 0.95, 0},           {"Dion2", 5e-4, 0.95, 0}};

void optimizer(Migrator& m) {
  Leaf* target = m.take("optimizer._target_");
  if (target == nullptr) return;
  const std::string kind = class_of(*target);
  const auto* known = std::find_if(std::begin(kOptimizers), std::end(kOptimizers),
                                   [&](const auto& one) { return kind == one.name; });
  const OptimizerDefaults defaults = known == std::end(kOptimizers) ? kOptimizers[0] : *known;
  const Leaf *decay = m.find("optimizer.weight_decay"),
             *decoupled = m.find("optimizer.adam_w_mode");
  const double weight_decay = is_number(decay) ? as_number(decay->value) : defaults.weight_decay;
  const bool joined = kind == "Adam" || kind == "AdamConfig" || is_false(decoupled);
  m.drop({"optimizer.adam_w_mode"});
  if (kind == "SGD")
    m.set("optimizer.name", Value("sgd"), *target);
  else if (joined)
    m.set("optimizer.name", Value("adamw"), *target,
          weight_decay == 0 ? "without weight decay the two are the same"
                            : "Adam adds weight decay to the gradient, adamw takes it from the "
                              "weight: weaker where gradients are small");
  else if (kind.find("AdamW") != std::string::npos || kind == "FusedAdam")
    m.set("optimizer.name", Value("adamw"), *target);
  else
    m.set("optimizer.name", Value("adamw"), *target,
          "there is no " + kind + " here, but adamw and sgd: lr and weight_decay are another's");
  m.assume("optimizer.lr", number_value(defaults.lr), kAutomodelsOwn);
  m.assume("optimizer.betas", list_of({number_value(0.9), number_value(defaults.beta2)}),
           kAutomodelsOwn);
  m.assume("optimizer.weight_decay", number_value(defaults.weight_decay), kAutomodelsOwn);
  Leaf *master = m.take("optimizer.master_weights"),
       *dtype = m.take("optimizer.master_weight_dtype"),
       *bits = m.take("optimizer.master_weight_bits");
  if (is_text(dtype))
    m.set("optimizer.main_dtype", dtype->value, *dtype);
  else if (is_true(master))
    m.set("optimizer.main_dtype", Value("float32"), *master);
  else if (is_number(bits))
    m.set("optimizer.main_dtype", Value("float32"), *bits, "weights of as many bits there");
  else if (kind == "FlashAdamW")
    m.assume("optimizer.main_dtype", Value("float32"), "FlashAdamW's default keeps 24 bits");
}

// The number of steps that the run has, where its recipe alone says so.
std::optional<int64_t> steps(Migrator& m, bool endless) {
  const std::optional<int64_t> most = m.count("step_scheduler.max_steps"),
                               epochs = m.count("step_scheduler.num_epochs");
  Leaf *steps = m.take("step_scheduler.max_steps"), *rounds = m.take("step_scheduler.num_epochs");
  if (most) {
    const bool no_limit = endless || (rounds != nullptr && !epochs);
    m.set("step_scheduler.max_steps", steps->value, *steps,
          no_limit
              ? std::string()
              : "the run there ends after " + std::to_string(epochs.value_or(10)) +
                    (epochs == 1 ? " epoch" : " epochs") + " of its data where that is sooner" +
                    (epochs ? "" : " (Automodel's default)"));
    if (epochs) m.left(*rounds, "step_scheduler.epochs stands in place of max_steps, which is set");
    return most;
  }
  if (is_said(steps))  // no whole number: in the loader's words
    m.set("step_scheduler.max_steps", steps->value, *steps);
  else if (epochs)
    m.set("step_scheduler.epochs", rounds->value, *rounds);
  else if (!endless && m.has_table("step_scheduler."))
    m.assume("step_scheduler.epochs", integer_value(10), kAutomodelsOwn);
  return std::nullopt;
}

void schedule(Migrator& m, std::optional<int64_t> steps) {
  m.drop({"lr_scheduler._target_"});
  if (m.has_table("recipe_args.") || m.find("optimizer.warmup_ratio") != nullptr) {
    m.want("lr_scheduler.lr_decay_style",
           "this recipe has a schedule of its own: say lr_decay_style, lr_warmup_steps and min_lr");
    return;
  }
  if (!m.has_table("lr_scheduler.")) {
    m.drop({"lr_scheduler"});
    m.assume("lr_scheduler.lr_decay_style", Value("constant"),
             "Automodel's default without lr_scheduler");
    m.assume("lr_scheduler.lr_warmup_steps", integer_value(0),
             "Automodel's default without lr_scheduler");
    return;
  }
  Leaf* peak = m.take("lr_scheduler.max_lr");
  if (is_number(peak)) {
    m.set("optimizer.lr", peak->value, *peak);
    if (Leaf* lr = m.take("optimizer.lr");
        is_number(lr) && as_number(lr->value) != as_number(peak->value))
      m.left(*lr, "lr_scheduler.max_lr is the rate after warm-up");
  }
  const Leaf* lr = is_number(peak) ? peak : m.find("optimizer.lr");
  const double top = is_number(lr) ? as_number(lr->value) : 1e-3;
  const std::optional<int64_t> ends = m.count("lr_scheduler.lr_decay_steps");
  Leaf *style = m.take("lr_scheduler.lr_decay_style"), *end = m.take("lr_scheduler.lr_decay_steps"),
       *plateau = m.take("lr_scheduler.wsd_decay_steps"),
       *shape = m.take("lr_scheduler.lr_wsd_decay_style");
  std::string name = style != nullptr ? style->value.text : "cosine", why;
  const std::string like = text::normal(name);
  if (like == "wsd") {
    const bool same = plateau != nullptr && steps && is_number(plateau->value) &&
                      as_number(plateau->value) * 10 == static_cast<double>(*steps) &&
                      shape != nullptr && shape->value.text == "linear";
    if (!same) why = "\"wsd\" decays linearly, over the last 10% of the steps";
    name = "wsd";
  } else if (like == "inverse_square_root") {
    why = "there is no inverse square root here, but constant, linear, cosine and wsd";
    name = "cosine";
  }
  if (ends && ends != steps && name != "constant")
    why = "it ends at step " + std::to_string(*ends) + " there and with the run here";
  if (style != nullptr)
    m.set("lr_scheduler.lr_decay_style", Value(name), *style, why);
  else if (!why.empty())
    m.set("lr_scheduler.lr_decay_style", Value(name), *end, why);
  Leaf *warm = m.take("lr_scheduler.lr_warmup_steps"), *first = m.take("lr_scheduler.init_lr");
  const bool from_zero = is_number(first) && as_number(first->value) == 0;
  const std::string begins =
      is_number(first) ? "from lr_scheduler.init_lr there" : "from a tenth of lr there";
  if (is_said(warm)) {
    const bool none = is_number(warm->value) && as_number(warm->value) == 0;
    m.set("lr_scheduler.lr_warmup_steps", warm->value, *warm,
          none || from_zero ? "" : begins + ", from lr / lr_warmup_steps here");
  } else if (const int64_t tenth = std::min<int64_t>(1000, steps.value_or(0) / 10); steps) {
    m.assume("lr_scheduler.lr_warmup_steps", integer_value(tenth),
             std::string(kAutomodelsOwn) + ", a tenth of the steps and at most 1000" +
                 (tenth == 0 || from_zero ? "" : ", " + begins));
  } else {
    m.want("lr_scheduler.lr_warmup_steps",
           "a tenth of the run's steps and at most 1000, as Automodel has it; 20 until it is set");
  }
  if (const Leaf* least = m.find("lr_scheduler.min_lr");
      (least == nullptr || is_empty(least->value)) && name != "constant")
    m.assume("lr_scheduler.min_lr", product(0.01, top),
             std::string(kAutomodelsOwn) + ", a hundredth of lr");
  if (const Leaf* least = m.find("lr_scheduler.min_lr"); least != nullptr && is_empty(least->value))
    m.drop({"lr_scheduler.min_lr"});
}

// "*q_proj" and "*.q_proj" are a last part of a name here; "*_proj" and "*" all Linears.
Value module_names(const Value& theirs, std::string& why) {
  Value out = list_of({});
  for (const Value& item : items_of(theirs)) {
    std::string name = item.text;
    if (name == "*" || name == "*_proj") {
      why = name == "*" ? "every Linear but heads"
                        : "every Linear but heads; there those whose names end in _proj";
      return Value("all-linear");
    }
    if (name.starts_with("*.") && name.find('*', 1) == std::string::npos)
      name = name.substr(2);
    else if (name.starts_with('*') && name.find('*', 1) == std::string::npos)
      name = name.substr(1);
    if (name.find('*') != std::string::npos)
      why = "patterns are of full names here, and * stays within a part";
    if (std::none_of(out.items.begin(), out.items.end(),
                     [&](const Value& one) { return one.text == name; }))
      out.items.emplace_back(name);
  }
  return out;
}

void adapters(Migrator& m) {
  if (!m.has_table("peft.")) return;
  m.drop({"peft._target_"});
  m.assume("lora.r", integer_value(8), kAutomodelsOwn);
  m.assume("lora.alpha", integer_value(32), kAutomodelsOwn);
  Leaf *targets = m.take("peft.target_modules"), *all = m.take("peft.match_all_linear"),
       *without = m.take("peft.exclude_modules"), *drop = m.take("peft.dropout"),
       *place = m.find("peft.dropout_position"), *init = m.take("peft.lora_A_init");
  std::string why;
  if (is_true(all))
    m.set("lora.target_modules", Value("all-linear"), *all, "heads get none here");
  else if (is_said(targets) &&
           !(targets->value.kind == Value::Kind::list && targets->value.items.empty()))
    m.set("lora.target_modules", module_names(targets->value, why), *targets, why);
  if (is_said(without)) {
    Value names = module_names(without->value, why);
    if (why.empty())
      m.set("lora.exclude_modules", names, *without);
    else
      m.left(*without, "lora.exclude_modules: " + why);
  }
  if (drop != nullptr) {
    const bool off = is_number(drop->value) && as_number(drop->value) == 0;
    m.set("lora.dropout", drop->value, *drop,
          off || (place != nullptr && place->value.text == "pre")
              ? ""
              : "what adapters read is dropped here, what they give there");
  }
  const bool normal = init != nullptr && text::normal(init->value.text) == "gaussian";
  const bool uniform = init != nullptr && init->value.text != "xavier";
  if (normal)
    m.set("lora.init", Value("gaussian"), *init, "Automodel draws all but xavier as kaiming does");
  else if (uniform && init->value.text != "uniform" && init->value.text != "kaiming")
    m.left(*init, "see lora.init: kaiming or gaussian");
  else if (init != nullptr)
    m.set("lora.init", Value("kaiming"), *init, uniform ? "" : "Xavier's normal numbers there");
}

void distribution(Migrator& m) {
  m.drop({"distributed.mp_policy._target_", "distributed_config._target_"});
  if (Leaf* strategy = m.take("distributed._target_"); strategy != nullptr) {
    std::string ours = m.strategy_of_class(strategy->value.text);
    if (ours.empty())
      m.left(*strategy, "names a class that no strategy here is named for");
    else if (m.find("distributed.strategy") == nullptr)
      m.set("distributed.strategy", Value(ours), *strategy, "after the name of the class");
  }
  if (Leaf* offload = m.take("distributed.offload_policy._target_"); offload != nullptr)
    m.set(m.strategy_key("offload_policy"), Value("cpu"), *offload);
  m.assume("dist_env.timeout_minutes", integer_value(1), kAutomodelsOwn);
}

void checkpoints(Migrator& m) {
  Leaf *enabled = m.take("checkpoint.enabled"), *every = m.take("step_scheduler.ckpt_every_steps"),
       *whole = m.take("checkpoint.save_consolidated"),
       *keep = m.take("checkpoint.max_recent_checkpoints");
  const bool off = is_false(enabled);
  if (every != nullptr && is_empty(every->value) && !off) {
    m.left(*every, "once an epoch there; checkpoint.every_steps counts steps");
    every = nullptr;
  }
  m.saves(enabled, every);
  m.choose(
      "checkpoint.checkpoint_dir", "run.dir", [](const Value& v) { return Choice(Value(v.text)); },
      "checkpoints lie in <run.dir>/<run.name>/checkpoints");
  m.drop({"checkpoint._target_"});
  if (off) {
    if (whole != nullptr) m.set("checkpoint.export", Value("none"), *whole);
    return;
  }
  const Value interval = every != nullptr ? every->value : integer_value(100);
  m.assume("checkpoint.every_steps", interval, kAutomodelsOwn);
  if (is_integer(keep))
    m.set("checkpoint.keep", keep->value, *keep);
  else
    m.assume("checkpoint.keep_every", interval, std::string(kAutomodelsOwn) + ": all are kept");
  // true is "every" today.
  if (whole == nullptr) return m.assume("checkpoint.export", Value("final"), kAutomodelsOwn);
  const std::string text = text::normal(whole->value.text);
  if (whole->value.kind == Value::Kind::boolean)
    m.set("checkpoint.export", Value(whole->value.boolean ? "every" : "none"), *whole);
  else if (text == "final" || text == "every")
    m.set("checkpoint.export", Value(text), *whole);
  else
    m.left(*whole, "checkpoint.export is none, final or every");
}

void other_keys(Migrator& m) {
  Leaf *seed = m.find("seed"), *drawn = m.take("rng.seed");
  m.drop({"rng._target_", "dataloader._target_", "validation_dataloader._target_",
          "step_scheduler._target_", "packed_sequence._target_", "clip_grad_norm._target_"});
  if (drawn != nullptr && seed == nullptr)
    m.set("run.seed", drawn->value, *drawn);
  else if (drawn != nullptr)
    m.left(*drawn, "the seed at the top is run.seed");
  if (Leaf* loss = m.find("loss_fn._target_"); loss != nullptr)
    for (const char* mean : {"MaskedCrossEntropy", "FusedLinearCrossEntropy",
                             "TEParallelCrossEntropy", "ChunkedCrossEntropy"})
      if (class_of(*loss) == mean) loss->used = true;  // the mean cross-entropy, as here
  m.drop({"loss_fn.fp32_upcast", "loss_fn.reduction", "loss_fn.ignore_index"});
  if (Leaf* eight = m.take("fp8.enabled"); is_true(eight)) {
    const Leaf* how = m.take("fp8.recipe_name");
    if (how == nullptr || is_empty(how->value) || how->value.text == "tensorwise")
      m.set("model.float8_linear", boolean_value(true), *eight,
            "Linears of layers alone, each matrix scaled by its largest element");
    else
      m.left(*eight, "model.float8_linear scales each matrix as a whole");
  }
  // Older recipes give the batch to the loader, and say how many of them are a step.
  constexpr int64_t kMost = 1 << 20;
  auto within = [&](const char* key) {
    return std::clamp<int64_t>(m.count(key).value_or(1), 1, kMost);
  };
  Leaf *batch = m.find("dataloader.batch_size"), *several = m.find("step_scheduler.grad_acc_steps");
  const bool of_loader = m.count("dataloader.batch_size").value_or(0) > 0 &&
                         m.find("step_scheduler.local_batch_size") == nullptr;
  if (of_loader) {
    batch->used = true;
    m.set("step_scheduler.local_batch_size", batch->value, *batch);
  }
  if (of_loader && m.count("step_scheduler.grad_acc_steps").value_or(0) > 0 &&
      m.find("step_scheduler.global_batch_size") == nullptr) {
    several->used = true;
    m.set("step_scheduler.global_batch_size",
          integer_value(within("dataloader.batch_size") * within("step_scheduler.grad_acc_steps") *
                        within("distributed.dp_size")),
          *several,
          "it is batch_size * grad_acc_steps times the data-parallel ranks: set it for your number "
          "of ranks");
  }
  m.assume("step_scheduler.local_batch_size", integer_value(1), kAutomodelsOwn);
  m.assume("step_scheduler.global_batch_size", integer_value(32), kAutomodelsOwn);
}

// The data of Automodel's recipes: what its classes of data sets are here.

class DataTable {
 public:
  DataTable(Migrator& m, const std::string& name) : m_(m), name_(name) {}

  // Whether the table's data can be read here.
  bool read() {
    Leaf* target = m_.take(name_ + "._target_");
    if (target == nullptr || target->value.kind != Value::Kind::string) return false;
    m_.drop({(name_ + ".tokenizer._target_").c_str()});
    const std::string path = text::normal(target->value.text),
                      kind = text::normal(class_of(*target));
    const bool mapped = kind.find("columnmapped") != std::string::npos;
    if ((kind.find("chatdataset") != std::string::npos || mapped) &&
        m_.knows(name_ + ".jsonl.format"))
      return rows(*target, mapped);
    const char* ours = kind.find("megatron") != std::string::npos  ? "megatron"
                       : kind.find("nanogpt") != std::string::npos ? "tokens"
                       : path.find("mock") != std::string::npos    ? "mock"
                                                                   : nullptr;
    if (ours == nullptr) {
      m_.left(*target, std::string(kDataOfHub) + ", and name them: " + name_ +
                           ".plugin = \"jsonl\" and " + name_ + ".path");
      return false;
    }
    mock_ = std::string_view(ours) == "mock";
    m_.set(name_ + ".kind", Value(ours), *target, "after the name of the class");
    Leaf* files = m_.take(name_ + ".paths");
    if (files == nullptr) files = m_.take(name_ + ".file_pattern");
    return path_of(files) || mock_;
  }

  bool mock() const { return mock_; }

 private:
  bool path_of(Leaf* leaf) {
    if (leaf == nullptr) return false;
    if (leaf->value.kind == Value::Kind::list && leaf->value.items.size() == 1) {
      Value only = leaf->value.items[0];
      leaf->value = std::move(only);
    }
    if (is_text(leaf)) {
      m_.set(name_ + ".path", leaf->value, *leaf);
      return true;
    }
    m_.left(*leaf, name_ + ".path is one file, folder or pattern");
    return true;
  }

  // Rows of conversations, or of prompts and completions: the plugin jsonl's.
  bool rows(Leaf& target, bool mapped) {
    const std::string own = name_ + ".jsonl.";
    m_.set(name_ + ".plugin", Value("jsonl"), target, "after the name of the class");
    m_.assume(own + "format", Value(mapped ? "prompt_completion" : "messages"),
              "what its class reads");
    if (mapped) columns();
    Leaf *files = m_.take(name_ + ".path_or_dataset_id"), *part = m_.find(name_ + ".split"),
         *last = m_.take(name_ + ".mask_history"),
         *masked = m_.take(name_ + ".answer_only_loss_mask"),
         *look = m_.take(name_ + ".chat_template"),
         *words = m_.take(name_ + ".tokenizer.pretrained_model_name_or_path");
    bool found = false;
    if (is_text(files) && !is_path(files->value.text)) {
      m_.left(*files, std::string(kDataOfHub) + " and name them as " + name_ + ".path");
    } else {
      found = path_of(files);
      // Files of this machine are read whole.
      if (part != nullptr && part->value.text.find('[') == std::string::npos) part->used = true;
    }
    if (is_true(last))
      m_.set(own + "train_on", Value("last"), *last);
    else if (masked != nullptr && masked->value.kind == Value::Kind::boolean)
      m_.set(own + "train_on", Value(masked->value.boolean ? "assistant" : "all"), *masked);
    if (is_text(look) && look->value.text.find('{') == std::string::npos)
      m_.set(own + "chat_template", look->value, *look);
    else if (is_said(look))
      m_.left(*look, own + "chat_template names a file: save it as one");
    if (is_text(words))
      m_.set(own + "tokenizer", Value(local_folder(words->value.text)), *words,
             download(words->value.text));
    const int64_t pack = m_.count("packed_sequence.packed_sequence_size").value_or(0);
    const Leaf* strategy = m_.find("packed_sequence.packing_strategy");
    if (pack <= 0) {
      m_.assume(own + "packing", Value("none"),
                "one row a sample, as Automodel has it without packing");
    } else {
      const bool neat = strategy != nullptr && strategy->value.text == "neat";
      if (!neat) m_.assume(own + "packing", Value("sequential"), "packs are filled in order there");
      m_.assume(own + "truncate", Value("drop"),
                "longer rows are dropped there where rows are packed");
    }
    if (pack <= 0 && m_.find(name_ + ".seq_length") == nullptr &&
        m_.find(name_ + ".seq_len") == nullptr)
      m_.want(name_ + ".seq_len",
              "tokens a sample; there each batch is as long as its longest row");
    return found;
  }

  void columns() {
    std::map<std::string, std::string> columns;
    const Leaf* from = nullptr;
    Leaf* context = m_.take(name_ + ".column_mapping.context");
    for (const auto& [theirs, ours] : {std::pair("question", "prompt"), {"answer", "completion"}}) {
      Leaf* column = m_.take(name_ + ".column_mapping." + theirs);
      if (!is_text(column)) continue;
      from = column;
      columns[ours] = column->value.text;
    }
    if (is_text(context)) {
      from = context;
      std::string& prompt = columns["prompt"];
      prompt =
          prompt.empty() ? context->value.text : "{" + context->value.text + "} {" + prompt + "}";
    }
    if (from == nullptr || columns == kColumns) return;
    if (m_.set_fields(name_, columns, *from,
                      is_text(context) ? "context and question are joined by a blank" : ""))
      return;
    for (const char* theirs : {"question", "answer", "context"}) {
      const Leaf* column = m_.find(name_ + ".column_mapping." + theirs);
      const std::string ours = *theirs == 'a' ? "completion" : "prompt";
      if (is_text(column) && column->value.text != ours)
        m_.left(*column, "rows here have the columns prompt and completion: rename it to " + ours);
    }
  }

  inline static const std::map<std::string, std::string> kColumns = {{"prompt", "prompt"},
                                                                     {"completion", "completion"}};
  Migrator& m_;
  const std::string name_;
  bool mock_ = false;
};

// [dataset], [validation_dataset] and packed_sequence. Whether the data never ends: it is mock.
bool automodel_data(Migrator& m) {
  DataTable trained(m, "dataset"), validation(m, "validation_dataset");
  trained.read();
  const bool validates = validation.read();
  // A pack is a sample.
  Leaf* pack = m.take("packed_sequence.packed_sequence_size");
  if (m.count("packed_sequence.packed_sequence_size").value_or(0) > 0) {
    m.set("dataset.seq_len", pack->value, *pack);
    for (const char* key : {"dataset.seq_length", "dataset.seq_len"})
      if (Leaf* leaf = m.take(key); leaf != nullptr && leaf->value.integer != pack->value.integer)
        m.left(*leaf, "packed_sequence_size is the length of a sample");
    if (validates) m.assume("validation_dataset.seq_len", pack->value, "as the data that train");
  }
  const Leaf* saves = m.find("step_scheduler.ckpt_every_steps");
  m.validation(validates, {{"step_scheduler.val_every_steps", "validation_dataset.every_steps"},
                           {"validation_dataset.seq_length", "validation_dataset.seq_len"},
                           {"validation_dataset.seq_len", "validation_dataset.seq_len"},
                           {"validation_dataloader.num_workers", "validation_dataset.workers"},
                           {"validation_dataloader.shuffle", "validation_dataset.shuffle"}});
  if (validates) {
    m.assume("validation_dataset.every_steps",
             is_integer(saves) ? saves->value : integer_value(100),
             "Automodel validates where it saves");
    m.want(
        "validation_dataset.num_batches",
        "global batches a validation; Automodel reads all of its validation data, 8 are read here "
        "until it is set");
  }
  return trained.mock();
}

}  // namespace

void from_automodel(Migrator& migrator) {
  recipe(migrator);
  model(migrator);
  optimizer(migrator);
  distribution(migrator);
  checkpoints(migrator);
  const bool endless = automodel_data(migrator);
  schedule(migrator, steps(migrator, endless));
  adapters(migrator);
  other_keys(migrator);
}

}  // namespace meshwright::config
