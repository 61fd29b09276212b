// torchtitan's TOML: what its keys are here where the table of foreign.cpp cannot say it.
#include <algorithm>
#include <cmath>

#include "apps/migrate/migrator.h"
#include "sdk/base/words.h"

namespace meshwright::config {
namespace {

using Choice = Migrator::Choice;

struct TitanDefault {
  const char *key, *toml;
};
// What torchtitan does when a file does not say so, where it differs from what is done here.
constexpr TitanDefault kTitanDefaults[] = {{"optimizer.lr", "8e-4"},
                                           {"lr_scheduler.warmup_steps", "200"},
                                           {"lr_scheduler.decay_type", "\"linear\""},
                                           {"lr_scheduler.min_lr_factor", "0.0"},
                                           {"training.local_batch_size", "8"},
                                           {"training.global_batch_size", "-1"},
                                           {"training.seq_len", "2048"},
                                           {"training.steps", "10000"},
                                           {"checkpoint.enable", "false"}};

constexpr const char* kTitansOwn = "torchtitan's default";

void torchtitan_model(Migrator& m) {
  Leaf* hf = m.take("checkpoint.initial_load_in_hf");
  if (Leaf* assets = m.take("model.hf_assets_path"); is_said(assets)) {
    if (is_true(hf))
      m.set("model.pretrained", Value(assets->value.text), *assets);
    else
      m.set("model.config", Value(assets->value.text + "/config.json"), *assets,
            "torchtitan builds its flavour of a model; this is the folder's");
  }
  Leaf *converters = m.take("model.converters"), *linear = m.take("float8.enable_float8_linear");
  const Leaf* how = m.find("float8.recipe_name");
  const bool tensorwise = how == nullptr || is_empty(how->value) || how->value.text == "tensorwise";
  auto eight = [&](Leaf& leaf) {
    if (tensorwise)
      m.set("model.float8_linear", boolean_value(true), leaf,
            "Linears of layers alone, each matrix scaled by its largest element");
    else
      m.left(leaf, "model.float8_linear scales each matrix as a whole");
  };
  if (converters != nullptr) {
    for (const Value& item : items_of(converters->value))
      if (item.text.find("float8") != std::string::npos)
        eight(*converters);
      else if (!is_empty(item))
        m.left(*converters, "of converters there is model.float8_linear alone");
  }
  if (linear != nullptr && (is_true(linear->value) || (linear->value.kind == Value::Kind::string &&
                                                       !is_empty(linear->value))))
    eight(*linear);
}

void torchtitan_optimizer(Migrator& m) {
  Leaf *b1 = m.take("optimizer.beta1"), *b2 = m.take("optimizer.beta2");
  if (b1 != nullptr || b2 != nullptr) {
    m.set("optimizer.betas",
          list_of({b1 != nullptr ? b1->value : number_value(0.9),
                   b2 != nullptr ? b2->value : number_value(0.95)}),
          b1 != nullptr ? *b1 : *b2);
  }
  if (Leaf* name = m.find("optimizer.name"); name != nullptr && name->value.text == "Adam") {
    name->used = true;
    m.set("optimizer.name", Value("adamw"), *name,
          "Adam adds weight decay to the gradient, adamw takes it from the weight: weaker where "
          "gradients are small");
  }
}

// There: warm-up, a plateau and a decay over the last decay_ratio of the steps, in which the last
// step's rate is the lowest. No ratio: it decays as soon as the warm-up ends.
void torchtitan_schedule(Migrator& m) {
  const int64_t steps = std::max<int64_t>(m.count("training.steps").value_or(0), 0);
  Leaf *ratio = m.take("lr_scheduler.decay_ratio"), *type = m.take("lr_scheduler.decay_type"),
       *share = m.take("training.warmup_pct"), *warm = m.find("lr_scheduler.warmup_steps");
  int64_t warmup = std::max<int64_t>(m.count("lr_scheduler.warmup_steps").value_or(0), 0);
  if (is_number(share)) {
    warmup = std::llround(as_number(share->value) * static_cast<double>(steps));
    warm->used = true;
    m.set("lr_scheduler.lr_warmup_steps", integer_value(warmup), *share);
  } else if (warmup > steps && steps > 0) {
    warm->used = true;
    m.set("lr_scheduler.lr_warmup_steps", integer_value(steps), *warm,
          "torchtitan's warm-up is no longer than the run");
  }
  warmup = std::min(warmup, steps);
  const std::string wanted = type->value.text;
  const int64_t after = steps - warmup;
  const double part = is_number(ratio) ? as_number(ratio->value) : 1;
  const int64_t decay = std::min<int64_t>(std::llround(part * static_cast<double>(steps)), after);
  const Leaf& from = is_number(ratio) ? *ratio : *type;
  std::string style = wanted == "sqrt" ? "linear" : wanted, why;
  if (&from == type) why = m.implied(*type);
  if (wanted == "sqrt") why = "there is no square root here, but linear and cosine";
  if (part <= 0) {
    style = "constant";
    why = "";
  } else if (decay < after) {
    const bool late = decay * 10 <= steps * 3;  // nearer to the last tenth than to all
    if (late) style = "wsd";
    if (!(late && decay * 10 == steps && wanted == "linear"))
      why = "it decays over the last " + std::to_string(decay) + " steps there (" + wanted + "), " +
            (late ? "linearly over the last 10% here" : "over all after the warm-up here");
  } else if (type->place.line == 0) {
    why = m.implied(*type);
  }
  m.set("lr_scheduler.lr_decay_style", Value(style), from, why);
  if (&from != type && type->place.line > 0 && style != wanted)
    m.left(*type, part <= 0 ? "with decay_ratio = 0 nothing decays" : "see decay_ratio");
  Leaf *factor = m.take("lr_scheduler.min_lr_factor"), *lr = m.find("optimizer.lr");
  if (part > 0 && factor != nullptr && lr != nullptr && is_number(factor->value) &&
      is_number(lr->value))
    m.set("lr_scheduler.min_lr", product(as_number(factor->value), as_number(lr->value)), *factor,
          m.implied(*factor));
}

void sizes(Migrator& m) {
  Leaf *local = m.find("training.local_batch_size"),
       *replicate = m.find("parallelism.data_parallel_replicate_degree"),
       *shard = m.take("parallelism.data_parallel_shard_degree"),
       *global = m.take("training.global_batch_size");
  auto count = [](const Leaf* leaf, int64_t fallback) {
    return is_integer(leaf) && leaf->value.integer > 0 && leaf->value.integer < 1 << 20
               ? leaf->value.integer
               : fallback;
  };
  if (shard != nullptr)
    m.set(
        "distributed.dp_size",
        count(shard, 0) > 0 ? integer_value(count(shard, 1) * count(replicate, 1)) : Value("auto"),
        *shard);
  if (count(global, 0) > 0)
    m.set("step_scheduler.global_batch_size", global->value, *global);
  else
    m.set("step_scheduler.global_batch_size",
          integer_value(count(local, 8) * count(replicate, 1) * count(shard, 1)), *global,
          "it means local_batch_size times the data-parallel ranks: set it for your number of "
          "ranks");
}

void torchtitan_distribution(Migrator& m) {
  m.choose("parallelism.fsdp_reshard_after_forward", "distributed.fsdp2.reshard_after_forward",
           [](const Value& v) {
             return v.text == "default" ? Choice(Value("auto"))
                    : v.text == "always" || v.text == "never"
                        ? Choice(boolean_value(v.text == "always"))
                        : std::nullopt;
           });
  m.choose("parallelism.pipeline_parallel_schedule_csv", "distributed.pipeline.pp_schedule_csv",
           [](const Value& v) { return is_empty(v) ? std::nullopt : Choice(v); });
  m.choose("parallelism.expert_parallel_comm_backend", "distributed.moe.dispatcher",
           [](const Value& v) {
             return v.text == "standard" ? Choice(Value("all_to_all")) : std::nullopt;
           });
  m.choose("training.enable_cpu_offload", "distributed.fsdp2.offload_policy",
           [](const Value& v) { return Choice(Value(is_true(v) ? "cpu" : "none")); });
  Leaf *mode = m.take("activation_checkpoint.mode"),
       *how = m.find("activation_checkpoint.selective_ac_option");
  if (how != nullptr && mode != nullptr && mode->value.text != "selective") how->used = true;
  const std::string partly =
      "there it is " +
      (how != nullptr && how->value.text == "op" ? std::string("chosen operators")
                                                 : "every second layer") +
      ", here the mlp and both norms of every layer";
  if (mode == nullptr) {
    m.assume("distributed.activation_checkpointing", Value("selective"),
             kTitansOwn + (": " + partly));
  } else if (mode->value.text == "selective") {
    m.set("distributed.activation_checkpointing", mode->value, *mode, partly);
    if (how != nullptr) how->used = true;
  } else if (mode->value.text == "none" || mode->value.text == "full") {
    m.set("distributed.activation_checkpointing", mode->value, *mode);
  } else {
    m.left(*mode, "distributed.activation_checkpointing is none, full or selective");
  }
  if (m.count("parallelism.pipeline_parallel_degree").value_or(1) > 1)
    for (const char* end : {"first", "last"})
      m.assume(std::string("distributed.pipeline.") + end + "_stage_less_layers", integer_value(1),
               kTitansOwn);
  Leaf *balancer = m.take("parallelism.context_parallel_load_balancer"),
       *rotation = m.take("parallelism.context_parallel_rotate_method");
  if (m.count("parallelism.context_parallel_degree").value_or(1) > 1) {
    if (balancer != nullptr) {
      const std::string name = text::normal(balancer->value.text);
      if (name == "headtail" || is_empty(balancer->value))
        m.set("distributed.context.load_balancer", Value(is_empty(balancer->value) ? "none" : name),
              *balancer);
      else
        m.left(*balancer, "distributed.context.load_balancer is headtail or none");
    }
    const bool ring = rotation != nullptr && rotation->value.text == "alltoall";
    if (rotation != nullptr)
      m.set("distributed.context.method", Value(ring ? "ring" : "all_gather"), *rotation,
            "how keys travel changes no value");
  } else if (balancer != nullptr && balancer->place.line > 0) {
    m.left(*balancer, "it is distributed.context.load_balancer once cp_size is above 1");
  }
  if (m.count("parallelism.expert_tensor_parallel_degree") == 1)
    m.drop({"parallelism.expert_tensor_parallel_degree"});
  // One limit here: the longer of the two.
  Leaf *first = m.take("comm.init_timeout_seconds"), *later = m.take("comm.train_timeout_seconds");
  auto seconds = [](const Leaf* leaf, double otherwise) {
    return is_number(leaf) ? as_number(leaf->value) : otherwise;
  };
  const double begin = seconds(first, 300), train = seconds(later, 100);
  if (Leaf* longer = begin > train ? first : later; longer != nullptr)
    m.set("dist_env.timeout_minutes", product(std::max(begin, train), 1.0 / 60), *longer);
  else
    m.assume("dist_env.timeout_minutes", product(std::max(begin, train), 1.0 / 60),
             "torchtitan's default until the first step");
  if (first != nullptr && begin <= train) m.left(*first, "one limit here: the longer one");
  if (later != nullptr && begin > train) m.left(*later, "one limit here: the longer one");
}

void torchtitan_checkpoints(Migrator& m) {
  m.choose("checkpoint.last_save_in_hf", "checkpoint.export",
           [](const Value& v) { return Choice(Value(is_true(v) ? "final" : "none")); });
  m.choose("checkpoint.async_mode", "checkpoint.async",
           [](const Value& v) { return Choice(boolean_value(v.text != "disabled")); });
  m.choose("checkpoint.load_step", "checkpoint.resume", [](const Value& v) {
    return v.kind == Value::Kind::integer && v.integer == -1 ? Choice(Value("auto")) : std::nullopt;
  });
  Leaf *enable = m.take("checkpoint.enable"), *every = m.take("checkpoint.interval"),
       *folder = m.take("checkpoint.folder"), *keep = m.take("checkpoint.keep_latest_k");
  Leaf* kind = m.find("checkpoint.interval_type");
  if (kind != nullptr && kind->value.text == "steps") kind->used = true;
  // Before there was a switch, an empty folder was one.
  const bool by_folder = enable != nullptr && enable->place.line == 0 && folder != nullptr;
  if (by_folder && !is_empty(folder->value)) {
    enable = nullptr;
    if (every == nullptr) m.assume("checkpoint.every_steps", integer_value(500), kTitansOwn);
  }
  if (is_said(folder)) m.left(*folder, "checkpoints lie in <run.dir>/<run.name>/checkpoints");
  m.saves(enable, every);
  if (enable != nullptr && !is_true(enable->value)) return;
  if (keep == nullptr)
    m.assume("checkpoint.keep", integer_value(10), kTitansOwn);
  else if (keep->value.kind == Value::Kind::integer && keep->value.integer > 0)
    m.set("checkpoint.keep", keep->value, *keep);
  else
    m.set("checkpoint.keep_every", every != nullptr ? every->value : integer_value(500), *keep,
          "0 keeps all there, which this does");
}

void torchtitan_data(Migrator& m) {
  Leaf* path = m.take("training.dataset_path");
  if (is_said(path))
    m.set("dataset.path", path->value, *path,
          "a folder or file of text; dataset.kind says what is in it");
  Leaf* on = m.take("validation.enable");
  Leaf* valid = m.take("validation.dataset_path");
  bool validates = is_true(on) && is_said(valid);
  if (validates)
    m.set("validation_dataset.path", valid->value, *valid,
          "a folder or file of text; validation_dataset.kind says what is in it");
  m.validation(validates, {{"validation.freq", "validation_dataset.every_steps"},
                           {"validation.steps", "validation_dataset.num_batches"},
                           {"validation.seq_len", "validation_dataset.seq_len"}});
  if (Leaf* leaf = m.take("validation.dataset"); leaf != nullptr)
    m.left(*leaf, "data of the hub is not read; validation_dataset.path names files");
  if (Leaf* leaf = m.take("training.dataset"); leaf != nullptr && path == nullptr)
    m.left(*leaf, "data of the hub is not read; dataset.path names files");
  m.assume("dataset.shuffle", boolean_value(false), "torchtitan reads its data in order");
  const Leaf* board = m.find("metrics.enable_tensorboard");
  if (!is_true(board)) m.drop({"metrics.save_tb_folder"});
  const Leaf* profile = m.find("profiling.enable_profiling");
  if (!is_true(profile))
    m.drop({"profiling.save_traces_folder", "profiling.profile_freq",
            "profiling.save_memory_snapshot_folder", "profiling.profile_every_x_iter"});
}

}  // namespace

void from_torchtitan(Migrator& migrator) {
  for (const TitanDefault& d : kTitanDefaults) migrator.add_default(d.key, d.toml);
  torchtitan_model(migrator);
  torchtitan_optimizer(migrator);
  torchtitan_schedule(migrator);
  sizes(migrator);
  torchtitan_distribution(migrator);
  torchtitan_checkpoints(migrator);
  torchtitan_data(migrator);
}

}  // namespace meshwright::config
