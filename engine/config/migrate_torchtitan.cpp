// torchtitan's TOML: what its keys are here where the table of foreign.cpp cannot say it.
#include <cstdio>
#include <cstdlib>

#include "engine/config/migrator.h"

namespace meshwright::config {
namespace {

using Choice = Migrator::Choice;

struct Default {
  const char *key, *toml;
};
// What torchtitan does when a file does not say so, where it differs from what is done here.
constexpr Default kDefaults[] = {{"optimizer.lr", "8e-4"},
                                 {"lr_scheduler.warmup_steps", "200"},
                                 {"lr_scheduler.decay_type", "\"linear\""},
                                 {"lr_scheduler.min_lr_factor", "0.0"},
                                 {"training.local_batch_size", "8"},
                                 {"training.global_batch_size", "-1"},
                                 {"training.seq_len", "2048"},
                                 {"training.steps", "10000"},
                                 {"activation_checkpoint.mode", "\"selective\""},
                                 {"checkpoint.enable", "false"}};

// 0.1 * 3e-4 as a person writes it, without the last digit of a binary product.
Value product(double a, double b) {
  char text[40];
  std::snprintf(text, sizeof text, "%.15g", a * b);
  return number_value(std::strtod(text, nullptr));
}

void torchtitan_model(Migrator& m) {
  Leaf* hf = m.take("checkpoint.initial_load_in_hf");
  if (Leaf* assets = m.take("model.hf_assets_path");
      assets != nullptr && !is_empty(assets->value)) {
    if (hf != nullptr && is_true(hf->value))
      m.set("model.pretrained", Value(assets->value.text), *assets);
    else
      m.set("model.config", Value(assets->value.text + "/config.json"), *assets,
            "torchtitan builds its flavour of a model; this is the folder's");
  }
}

void optimizer(Migrator& m) {
  Leaf *b1 = m.take("optimizer.beta1"), *b2 = m.take("optimizer.beta2");
  if (b1 != nullptr || b2 != nullptr) {
    Value betas;
    betas.kind = Value::Kind::list;
    betas.items = {b1 != nullptr ? b1->value : number_value(0.9),
                   b2 != nullptr ? b2->value : number_value(0.95)};
    m.set("optimizer.betas", betas, b1 != nullptr ? *b1 : *b2);
  }
  m.choose("lr_scheduler.decay_type", "lr_scheduler.lr_decay_style", [](const Value& v) {
    return v.text == "linear" || v.text == "cosine" ? Choice(v) : std::nullopt;
  });
  if (Leaf* ratio = m.take("lr_scheduler.decay_ratio");
      ratio != nullptr && is_number(ratio->value)) {
    m.unset("lr_scheduler.lr_decay_style");
    m.set("lr_scheduler.lr_decay_style", Value("wsd"), *ratio,
          "\"wsd\" decays over the last 10% of the steps, whatever the ratio there");
  }
  Leaf *factor = m.take("lr_scheduler.min_lr_factor"), *lr = m.find("optimizer.lr");
  if (factor != nullptr && lr != nullptr && is_number(factor->value) && is_number(lr->value))
    m.set("lr_scheduler.min_lr", product(as_number(factor->value), as_number(lr->value)), *factor,
          m.implied(*factor));
}

void sizes(Migrator& m) {
  Leaf *local = m.find("training.local_batch_size"),
       *replicate = m.find("parallelism.data_parallel_replicate_degree"),
       *shard = m.take("parallelism.data_parallel_shard_degree"),
       *global = m.take("training.global_batch_size");
  auto count = [](const Leaf* leaf, int64_t fallback) {
    return leaf != nullptr && leaf->value.kind == Value::Kind::integer && leaf->value.integer > 0 &&
                   leaf->value.integer < 1 << 20
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

void distribution(Migrator& m) {
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
  m.choose("activation_checkpoint.mode", "distributed.activation_checkpointing",
           [](const Value& v) {
             return v.text == "none" || v.text == "full" || v.text == "selective" ? Choice(v)
                                                                                  : std::nullopt;
           });
}

void torchtitan_checkpoints(Migrator& m) {
  m.choose("checkpoint.last_save_in_hf", "checkpoint.export",
           [](const Value& v) { return Choice(Value(is_true(v) ? "final" : "none")); });
  m.choose("checkpoint.async_mode", "checkpoint.async",
           [](const Value& v) { return Choice(boolean_value(v.text != "disabled")); });
  m.choose("checkpoint.load_step", "checkpoint.resume", [](const Value& v) {
    return v.kind == Value::Kind::integer && v.integer == -1 ? Choice(Value("auto")) : std::nullopt;
  });
  m.saves(m.take("checkpoint.enable"), m.take("checkpoint.interval"));
  if (Leaf* old = m.take("checkpoint.enable_checkpoint"); old != nullptr) m.saves(old, nullptr);
  m.choose("checkpoint.keep_latest_k", "checkpoint.keep", [](const Value& v) {
    return v.kind == Value::Kind::integer && v.integer > 0 ? Choice(v) : std::nullopt;
  });
}

void torchtitan_data(Migrator& m) {
  Leaf* path = m.take("training.dataset_path");
  if (path != nullptr && !is_empty(path->value))
    m.set("dataset.path", path->value, *path,
          "a folder or file of text; dataset.kind says what is in it");
  Leaf* on = m.take("validation.enable");
  Leaf* valid = m.take("validation.dataset_path");
  bool validates =
      on != nullptr && is_true(on->value) && valid != nullptr && !is_empty(valid->value);
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
}

}  // namespace

void from_torchtitan(Migrator& migrator) {
  for (const Default& d : kDefaults) migrator.add_default(d.key, d.toml);
  torchtitan_model(migrator);
  optimizer(migrator);
  sizes(migrator);
  distribution(migrator);
  torchtitan_checkpoints(migrator);
  torchtitan_data(migrator);
}

}  // namespace meshwright::config
