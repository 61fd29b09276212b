#include "apps/migrate/trainer_args.h"

#include <algorithm>
#include <cmath>

#include "sdk/base/words.h"

namespace meshwright::config {
namespace {

bool is_whole(const Leaf* leaf) {
  return leaf != nullptr && is_number(leaf->value) &&
         std::trunc(as_number(leaf->value)) == as_number(leaf->value) &&
         std::abs(as_number(leaf->value)) < 1e15;
}

Value whole(const Leaf& leaf) { return integer_value(std::llround(as_number(leaf.value))); }

std::string of_program(const TrainerArgs& args) { return std::string(args.program) + "'s default"; }

bool is_one_of(const std::string& text, std::initializer_list<std::string_view> all) {
  return std::find(all.begin(), all.end(), text) != all.end();
}

// Why a schedule of that name is not quite ours; nothing: it is.
struct Style {
  std::string ours, why;
};
Style style_of(Migrator& m, const std::string& theirs, std::optional<int64_t> steps) {
  if (is_one_of(theirs, {"linear", "cosine", "constant", "cosine_with_min_lr",
                         "cosine_warmup_with_min_lr"}))
    return {theirs.substr(0, theirs.find('_')), {}};
  if (theirs == "constant_with_warmup") return {"constant", {}};
  if (theirs == "polynomial") {
    const Leaf* power = m.take("lr_scheduler_kwargs.power");
    return {"linear",
            is_number(power) && as_number(power->value) != 1 ? "there is no power but 1 here" : ""};
  }
  if (theirs == "cosine_with_restarts") {
    const std::optional<int64_t> cycles = m.count("lr_scheduler_kwargs.num_cycles");
    m.drop({"lr_scheduler_kwargs.num_cycles"});
    return {"cosine", cycles.value_or(1) > 1 ? "there are no restarts here" : ""};
  }
  if (theirs == "warmup_stable_decay") {
    const std::optional<int64_t> decay = m.count("lr_scheduler_kwargs.num_decay_steps");
    const Leaf* shape = m.take("lr_scheduler_kwargs.decay_type");
    m.drop({"lr_scheduler_kwargs.num_decay_steps", "lr_scheduler_kwargs.num_stable_steps"});
    const bool same = decay && steps && *decay * 10 == *steps && shape != nullptr &&
                      shape->value.text == "linear";
    return {"wsd", same ? "" : "\"wsd\" decays linearly, over the last 10% of the steps"};
  }
  if (theirs == "reduce_lr_on_plateau")
    return {"constant", "no schedule here looks at the validation loss"};
  return {"cosine", "there is no " + theirs + " here, but constant, linear, cosine and wsd"};
}

// Warm-up as a number of steps or a part of them; what says it is `from`.
struct WarmUp {
  Leaf* from = nullptr;
  double value = 0;
  bool part = false;
};
WarmUp warm_up_of(Migrator& m) {
  Leaf *number = m.take("warmup_steps"), *ratio = m.take("warmup_ratio");
  const bool counts = is_number(number) && as_number(number->value) >= 1,
             shares = is_number(ratio) && as_number(ratio->value) > 0;
  if (counts && shares) m.left(*ratio, "warmup_steps comes before it there");
  if (counts) return {number, as_number(number->value), false};
  if (is_number(number) && as_number(number->value) > 0)
    return {number, as_number(number->value), true};
  if (shares) return {ratio, as_number(ratio->value), true};
  Leaf* none = is_number(number) ? number : is_number(ratio) ? ratio : nullptr;
  return {none, 0, false};
}

// The Trainer's warm-up is a step behind.
constexpr const char* kFromZero =
    "the rate of the first step is 0 there, lr / lr_warmup_steps here";

// "self_attn.q_proj" and the like are last parts of names; an expression is no list of them.
bool is_expression(const std::string& text) {
  return text.find_first_of("\\[](){}|^$+?*") != std::string::npos;
}

}  // namespace

void trainer_optimizer(Migrator& m, const TrainerArgs& args) {
  Leaf *name = m.take(args.optimizer), *b1 = m.take("adam_beta1"), *b2 = m.take("adam_beta2"),
       *decay = m.take("weight_decay");
  const std::string kind = is_text(name) ? text::normal(name->value.text) : "adamw_torch";
  if (is_text(name)) {
    const bool narrow = kind.find("8bit") != std::string::npos ||
                        kind.find("4bit") != std::string::npos ||
                        kind.find("fp8") != std::string::npos;
    const bool adamw = kind.find("adamw") != std::string::npos &&
                       kind.find("schedule_free") == std::string::npos &&
                       kind.find("muon") == std::string::npos;
    if (kind == "sgd")
      m.set("optimizer.name", Value("sgd"), *name);
    else if (is_one_of(kind, {"adamw", "adamw_hf", "adamw_torch", "adamw_torch_fused",
                              "adamw_apex_fused", "adamw_torch_xla"}))
      m.set("optimizer.name", Value("adamw"), *name);
    else
      m.set("optimizer.name", Value("adamw"), *name,
            adamw && narrow ? "its state has fewer bits there; here it has the dtype of the weights"
            : adamw         ? "the same rule, implemented in another way"
                            : "there is no " + kind +
                          " here, but adamw and sgd: lr and weight_decay are another's");
  }
  auto half = [](const Leaf* leaf, double otherwise) {
    return is_number(leaf) ? leaf->value : number_value(otherwise);
  };
  const Value betas = list_of({half(b1, 0.9), half(b2, 0.999)});
  if (is_number(b1) || is_number(b2))
    m.set("optimizer.betas", betas, is_number(b1) ? *b1 : *b2);
  else
    m.assume("optimizer.betas", betas, of_program(args));
  if (is_said(decay))
    m.set("optimizer.weight_decay", decay->value, *decay);
  else
    m.assume("optimizer.weight_decay", integer_value(0), of_program(args));
  if (is_number(decay) && as_number(decay->value) > 0)
    m.assume("optimizer.no_decay", Value("norms_and_biases"),
             "Hugging Face's Trainer leaves them out");
  if (args.lr > 0) m.assume("optimizer.lr", number_value(args.lr), of_program(args));
}

std::optional<int64_t> trainer_steps(Migrator& m, const TrainerArgs& args) {
  Leaf *steps = m.take("max_steps"), *rounds = m.take(args.epochs);
  if (is_number(steps) ? as_number(steps->value) > 0 : is_said(steps)) {
    m.set("step_scheduler.max_steps", is_whole(steps) ? whole(*steps) : steps->value, *steps);
    if (is_said(rounds)) m.left(*rounds, "max_steps counts in its place");
    if (is_whole(steps)) return whole(*steps).integer;
    return std::nullopt;
  }
  if (is_whole(rounds))
    m.set("step_scheduler.epochs", whole(*rounds), *rounds);
  else if (is_said(rounds))
    m.left(*rounds,
           "step_scheduler.epochs is a whole number; step_scheduler.max_steps counts "
           "steps");
  else
    m.assume("step_scheduler.epochs", integer_value(args.rounds), of_program(args));
  return std::nullopt;
}

void trainer_schedule(Migrator& m, const TrainerArgs& args, std::optional<int64_t> steps) {
  Leaf *type = m.take(args.scheduler), *cosine_low = m.take("cosine_min_lr_ratio"),
       *flat = m.take("cosine_constant_lr_ratio");
  const std::string theirs = is_text(type) ? text::normal(type->value.text) : args.style;
  const Leaf* lr = m.find("learning_rate");
  const double top = is_number(lr) ? as_number(lr->value) : args.lr;
  Style style = style_of(m, theirs, steps);
  if (is_number(flat) && as_number(flat->value) > 0 && is_number(cosine_low)) {
    m.left(*flat, "every decay ends with the run here");
    style.why = "it ends before the run there";
  }
  if (is_text(type))
    m.set("lr_scheduler.lr_decay_style", Value(style.ours), *type, style.why);
  else
    m.assume("lr_scheduler.lr_decay_style", Value(style.ours), of_program(args));

  Leaf *low = m.take("lr_scheduler_kwargs.min_lr"), *end = m.take("lr_scheduler_kwargs.lr_end");
  Leaf* share = m.take("lr_scheduler_kwargs.min_lr_rate");
  if (share == nullptr) share = m.take("lr_scheduler_kwargs.min_lr_ratio");
  if (!is_number(share) && theirs == "cosine") share = cosine_low;
  if (share != cosine_low && is_said(cosine_low))
    m.left(*cosine_low, "it counts with lr_scheduler = cosine alone");
  if (is_number(share))
    m.set("lr_scheduler.min_lr", product(as_number(share->value), top), *share);
  else if (is_number(low))
    m.set("lr_scheduler.min_lr", low->value, *low);
  else if (is_number(end))
    m.set("lr_scheduler.min_lr", end->value, *end);
  else if (theirs == "polynomial")
    m.assume("lr_scheduler.min_lr", number_value(std::min(1e-7, top)), of_program(args));

  const WarmUp warm = warm_up_of(m);
  const std::string key = "lr_scheduler.lr_warmup_steps";
  if (theirs == "constant") {
    m.assume(key, integer_value(0), "constant has no warm-up there; constant_with_warmup has one");
    if (warm.from != nullptr && warm.value > 0)
      m.left(*warm.from, "constant has no warm-up there, whatever this says");
  } else if (warm.from == nullptr) {
    if (args.share == 0 || steps)
      m.assume(key,
               integer_value(std::min<int64_t>(
                   100, static_cast<int64_t>(args.share * static_cast<double>(steps.value_or(0))))),
               of_program(args));
    else
      m.want(key, text::short_number(100 * args.share) +
                      "% of the run's steps and at most 100, as " + args.program +
                      " has it; 20 until it is set");
  } else if (!warm.part) {
    m.set(key, integer_value(std::llround(warm.value)), *warm.from,
          warm.value > 0 ? kFromZero : "");
  } else if (steps) {
    const double product = warm.value * static_cast<double>(*steps);
    m.set(key,
          integer_value(
              static_cast<int64_t>(args.share > 0 ? std::floor(product) : std::ceil(product))),
          *warm.from, kFromZero);
  } else {
    const std::string part = text::short_number(100 * warm.value) + "% of the run's steps";
    m.left(*warm.from, "see " + key + ", a number of steps: " + part);
    m.want(key, part + "; 20 until it is set");
  }
}

void trainer_batches(Migrator& m, const TrainerArgs& args, int64_t ranks) {
  static constexpr int64_t kMost = 1 << 20;
  Leaf *local = m.take(args.local_batch), *several = m.take("gradient_accumulation_steps"),
       *all = m.take("batch_size");
  auto count = [](const Leaf* leaf, int64_t otherwise) {
    return is_whole(leaf) && as_number(leaf->value) > 0 ? std::min(whole(*leaf).integer, kMost)
                                                        : otherwise;
  };
  const int64_t samples = count(local, args.batch);
  if (is_said(local))
    m.set("step_scheduler.local_batch_size", is_whole(local) ? whole(*local) : local->value,
          *local);
  else
    m.assume("step_scheduler.local_batch_size", integer_value(args.batch), of_program(args));
  // axolotl's batch_size is what a rank reads for a step.
  const bool by_rank = is_whole(all) && as_number(all->value) > 0 && !is_said(several);
  const int64_t a_step = by_rank ? count(all, samples) : samples * count(several, 1);
  const Value product_of = integer_value(std::min(a_step * ranks, kMost));
  const std::string why =
      std::string(by_rank ? "batch_size" : "the samples of a rank, accumulated,") +
      (ranks > 1 ? " times the data-parallel ranks of the file"
                 : " times the data-parallel ranks: set it for your number of ranks");
  const Leaf* from = by_rank ? all : is_said(several) ? several : is_said(local) ? local : nullptr;
  if (from != nullptr)
    m.set("step_scheduler.global_batch_size", product_of, *from, why);
  else
    m.assume("step_scheduler.global_batch_size", product_of, why);
  if (!by_rank && is_said(all)) m.left(*all, "gradient_accumulation_steps counts in its place");
}

void trainer_saves(Migrator& m, const TrainerArgs& args, std::optional<int64_t> steps,
                   bool validates) {
  Leaf *how = m.take("save_strategy"), *every = m.take("save_steps"),
       *often = m.take("saves_per_epoch"), *keep = m.take("save_total_limit");
  std::string strategy = args.saves_by_epoch ? "epoch" : "steps";
  if (is_text(how)) strategy = text::normal(how->value.text);
  if (is_false(how)) strategy = "no";  // YAML's no
  const std::string key = "checkpoint.every_steps";
  const bool said = is_number(every) && as_number(every->value) > 0;
  if (said && args.saves_by_epoch) strategy = "steps";
  std::optional<Value> interval;
  if (strategy == "no") {
    if (how != nullptr) m.set(key, integer_value(0), *how, "the last step is always saved");
    if (said) m.left(*every, "save_strategy = no comes before it there");
  } else if (strategy == "steps" && said && is_whole(every)) {
    interval = whole(*every);
    m.set(key, *interval, *every);
  } else if (strategy == "steps" && said && steps) {
    interval = integer_value(
        std::max<int64_t>(1, std::llround(as_number(every->value) * static_cast<double>(*steps))));
    m.set(key, *interval, *every);
  } else if (strategy == "steps" && !said && !args.saves_by_epoch) {
    interval = integer_value(500);
    m.assume(key, *interval, of_program(args));
  } else {
    const Leaf* from = said ? every : is_said(often) ? often : is_said(how) ? how : nullptr;
    const std::string when = strategy == "best" ? "whenever the validation loss is the lowest"
                             : said             ? "every part of the run"
                                                : "once an epoch, or several times,";
    const bool best = strategy == "best" && how != nullptr && validates;
    if (best) m.set("checkpoint.best", boolean_value(true), *how);
    if (from != nullptr && !best)
      m.left(*from, "see " + key + ", a number of steps; it saves " + when + " there");
    m.want(key, "it saves " + when + " there; every 50 steps here until it is set");
    if (is_said(how) && from != how && !best)
      m.left(*how, "see " + key + ": saves are counted in steps");
  }
  if (is_said(often) && (said || strategy == "no"))
    m.left(*often, "save_steps and save_strategy come before it there");
  if (strategy != "no") {
    if (is_integer(keep) && keep->value.integer > 0)
      m.set("checkpoint.keep", keep->value, *keep);
    else if (args.kept > 0)
      m.assume("checkpoint.keep", integer_value(args.kept), of_program(args));
    else if (interval)
      m.assume("checkpoint.keep_every", *interval, of_program(args) + ": all are kept");
  }
  m.assume("checkpoint.export", Value("final"), "the model is saved at the end there");
  Leaf* checks = m.take("eval_strategy");
  if (checks == nullptr) checks = m.take("evaluation_strategy");
  const bool off = checks == nullptr || !is_said(checks) || is_false(checks) ||
                   text::normal(checks->value.text) == "no";
  if (!off && (!validates || text::normal(checks->value.text) != "steps"))
    m.left(*checks,
           "see validation_dataset.every_steps: a validation runs every so many steps "
           "where validation_dataset.path is set");
  m.validation(validates, {{"eval_steps", "validation_dataset.every_steps"}});
}

void trainer_adapters(Migrator& m, const TrainerArgs& args, const Leaf* on) {
  Leaf *rank = m.take("lora_r"), *alpha = m.take("lora_alpha"), *drop = m.take("lora_dropout"),
       *targets = m.take("lora_target_modules"), *all = m.take("lora_target_linear"),
       *start = m.take("lora_model_dir");
  if (on == nullptr) {
    for (const Leaf* leaf : {rank, alpha, drop, targets, all, start})
      if (is_said(leaf) && !is_false(leaf))
        m.left(*leaf, "nothing switches adapters on there: the whole model trains");
    return;
  }
  auto number = [&](Leaf* leaf, const char* key, const Value& otherwise) {
    if (is_said(leaf))
      m.set(key, leaf->value, *leaf);
    else
      m.assume(key, otherwise, of_program(args));
  };
  // Adapters that are there have a rank and modules of their own.
  if (is_said(start)) {
    m.set("lora.adapter", start->value, *start);
    for (const auto& [leaf, key] :
         {std::pair(rank, "lora.r"), {alpha, "lora.alpha"}, {drop, "lora.dropout"}})
      if (is_said(leaf)) m.set(key, leaf->value, *leaf);
    for (const Leaf* leaf : {targets, all})
      if (is_said(leaf)) m.left(*leaf, "the modules are those of lora.adapter");
    return;
  }
  if (is_said(rank))
    m.set("lora.r", rank->value, *rank);
  else
    m.set("lora.r", integer_value(args.rank), *on, of_program(args));
  number(alpha, "lora.alpha", integer_value(args.alpha));
  number(drop, "lora.dropout", number_value(args.dropout));
  const std::vector<Value> names =
      is_said(targets) ? items_of(targets->value) : std::vector<Value>();
  const bool expression = std::any_of(names.begin(), names.end(), [](const Value& one) {
    return one.kind != Value::Kind::string || is_expression(one.text);
  });
  if (is_true(all)) {
    m.set("lora.target_modules", Value("all-linear"), *all);
    if (!names.empty()) m.left(*targets, "lora_target_linear has all of them and more");
  } else if (names.size() == 1 && text::normal(names[0].text) == "all_linear") {
    m.set("lora.target_modules", Value("all-linear"), *targets);
  } else if (expression) {
    m.left(*targets,
           "see lora.target_modules: last parts of names, or patterns in which * stays "
           "within a part; expressions are not read");
    m.want("lora.target_modules", "the Linears that get an adapter; all but heads until it is set");
  } else if (!names.empty()) {
    m.set("lora.target_modules", list_of(names), *targets);
  } else {
    m.assume("lora.target_modules", list_of({Value("q_proj"), Value("v_proj")}),
             "peft's default for most families");
  }
}

Leaf* trainer_precision(Migrator& m, bool otherwise) {
  const std::string key = "distributed.mp_policy.param_dtype";
  Leaf *bf16 = m.take("bf16"), *fp16 = m.take("fp16");
  for (const char* other : {"bfloat16", "float16"})
    if (Leaf* leaf = m.take(other); is_true(leaf)) {
      Leaf*& shorter = other[0] == 'b' ? bf16 : fp16;
      if (is_true(shorter))
        m.left(*leaf, shorter->key + " says the same");
      else
        shorter = leaf;
    }
  const bool wide = bf16 != nullptr && (is_true(bf16) || is_text(bf16));  // "auto", "full"
  if (is_true(fp16)) {
    m.set(key, Value("float16"), *fp16);
    if (wide) m.left(*bf16, "fp16 counts in its place");
    return fp16;
  }
  if (wide) {
    m.set(key, Value("bfloat16"), *bf16);
    return bf16;
  }
  if (bf16 != nullptr && is_false(bf16))
    m.set(key, Value("float32"), *bf16);
  else if (!otherwise)
    m.assume(key, Value("float32"), "nothing narrower is asked for");
  return nullptr;
}

void trainer_other_keys(Migrator& m) {
  for (const char* prefix : {"wandb_", "mlflow_", "comet_", "swanlab_", "use_wandb", "use_mlflow",
                             "use_comet", "use_swanlab", "trackio_"})
    m.leave(prefix, "wandb_project");
  m.leave("fsdp_transformer_layer_cls_to_wrap", "fsdp");
  if (Leaf* across = m.find("average_tokens_across_devices"); is_false(across)) {
    across->used = true;
    m.left(*across, "the loss is the mean over the targets of a step, those of all ranks");
  }
  Leaf *to = m.take("report_to"), *limit = m.find("ddp_timeout");
  if (to != nullptr) {
    bool board = false, others = false;
    for (const Value& one : items_of(to->value)) {
      const std::string name = text::normal(one.text);
      board = board || name == "tensorboard" || name == "all";
      others = others || !is_one_of(name, {"tensorboard", "none", ""});
    }
    if (board) m.set("report.tensorboard", boolean_value(true), *to);
    if (others)
      m.left(*to, std::string(board ? "of these there is report.tensorboard; e" : "E") +
                      "very step goes to metrics.jsonl in the run's folder");
  }
  if (limit == nullptr)
    m.assume("dist_env.timeout_minutes", integer_value(30), "Hugging Face's default");
  Leaf* again = m.take("resume_from_checkpoint");
  if (is_text(again))
    m.left(*again, "see checkpoint.resume: a checkpoint of this program");
  else if (is_false(again))
    m.assume("checkpoint.resume", Value("none"), "nothing is resumed there");
}

}  // namespace meshwright::config
