// Automodel's YAML: what its keys are here where the table of foreign.cpp cannot say it.
#include <algorithm>

#include "engine/config/migrator.h"
#include "sdk/base/words.h"

namespace meshwright::config {
namespace {

using Choice = Migrator::Choice;

// "meta-llama/Llama-3.2-1B", a name on the hub, as the folder into which it is downloaded.
std::string local_folder(const std::string& name) {
  bool hub = std::count(name.begin(), name.end(), '/') == 1 && name[0] != '/' && name[0] != '.' &&
             name[0] != '~';
  return hub ? "models/" + name.substr(name.find('/') + 1) : name;
}

// What to do about a name on the hub; empty for a folder.
std::string download(const std::string& hub) {
  return local_folder(hub) == hub
             ? std::string()
             : "download it first: hf download " + hub + " --local-dir " + local_folder(hub);
}

void model(Migrator& m) {
  Leaf *target = m.take("model._target_"), *name = m.take("model.pretrained_model_name_or_path");
  if (name != nullptr && name->value.kind == Value::Kind::string) {
    bool random = target != nullptr && target->value.text.ends_with("from_config");
    std::string folder = local_folder(name->value.text);
    m.set(random ? "model.config" : "model.pretrained",
          Value(random ? folder + "/config.json" : folder), *name, download(name->value.text));
  }
  for (const char* key :
       {"model.config.pretrained_model_name_or_path", "model.config.name_or_path", "model.config"})
    if (Leaf* config = m.take(key);
        config != nullptr && config->value.kind == Value::Kind::string && !m.is_set("model.config"))
      m.set("model.config",
            Value(local_folder(config->value.text) +
                  (config->value.text.ends_with(".json") ? "" : "/config.json")),
            *config, download(config->value.text));
}

void classes(Migrator& m) {
  if (Leaf* optimizer = m.take("optimizer._target_"); optimizer != nullptr) {
    std::string kind = optimizer->value.text.substr(optimizer->value.text.rfind('.') + 1);
    if (kind == "AdamW")
      m.set("optimizer.name", Value("adamw"), *optimizer);
    else if (kind == "SGD")
      m.set("optimizer.name", Value("sgd"), *optimizer);
    else
      m.set("optimizer.name", Value("adamw"), *optimizer, "there are adamw and sgd here");
  }
  if (Leaf* strategy = m.take("distributed._target_"); strategy != nullptr) {
    std::string ours = m.strategy_of_class(strategy->value.text);
    if (ours.empty())
      m.left(*strategy, "names a class that no strategy here is named for");
    else if (m.find("distributed.strategy") == nullptr)
      m.set("distributed.strategy", Value(ours), *strategy, "after the name of the class");
  }
}

void checkpoints(Migrator& m) {
  m.saves(m.take("checkpoint.enabled"), m.take("step_scheduler.ckpt_every_steps"));
  m.choose("checkpoint.save_consolidated", "checkpoint.export", [](const Value& v) {
    return v.kind == Value::Kind::boolean           ? Choice(Value(v.boolean ? "final" : "none"))
           : v.text == "final" || v.text == "every" ? Choice(v)
                                                    : std::nullopt;
  });
  m.choose(
      "checkpoint.checkpoint_dir", "run.dir", [](const Value& v) { return Choice(Value(v.text)); },
      "checkpoints lie in <run.dir>/<run.name>/checkpoints");
}

// Whether the table's data can be read here.
bool dataset(Migrator& m, const std::string& table) {
  Leaf *target = m.take(table + "._target_"), *paths = m.take(table + ".paths");
  if (paths == nullptr) paths = m.take(table + ".file_pattern");
  if (target == nullptr) return false;
  std::string kind = text::normal(target->value.text.substr(target->value.text.rfind('.') + 1));
  const char* ours = kind.find("megatron") != std::string::npos  ? "megatron"
                     : kind.find("nanogpt") != std::string::npos ? "tokens"
                     : kind.find("mock") != std::string::npos    ? "mock"
                                                                 : nullptr;
  if (ours == nullptr) {
    m.left(*target, "data of the hub and for conversations is not read; " + table +
                        ".path names text or tokens on this machine");
    return false;
  }
  m.set(table + ".kind", Value(ours), *target, "after the name of the class");
  if (paths != nullptr && paths->value.kind == Value::Kind::list &&
      paths->value.items.size() == 1) {
    Value only = paths->value.items[0];
    paths->value = std::move(only);
  }
  if (paths != nullptr && paths->value.kind == Value::Kind::string)
    m.set(table + ".path", paths->value, *paths);
  else if (paths != nullptr)
    m.left(*paths, table + ".path is one file, folder or pattern");
  return paths != nullptr || std::string_view(ours) == "mock";
}

void data(Migrator& m) {
  dataset(m, "dataset");
  bool validates = dataset(m, "validation_dataset");
  m.choose("packed_sequence.packed_sequence_size", "dataset.seq_len", [&](const Value& v) {
    bool packs = v.kind == Value::Kind::integer && v.integer > 0 &&
                 m.find("dataset.seq_length") == nullptr && m.find("dataset.seq_len") == nullptr;
    return packs ? Choice(v) : std::nullopt;
  });
  m.validation(validates, {{"step_scheduler.val_every_steps", "validation_dataset.every_steps"},
                           {"validation_dataset.seq_length", "validation_dataset.seq_len"},
                           {"validation_dataset.seq_len", "validation_dataset.seq_len"}});
}

}  // namespace

void from_automodel(Migrator& migrator) {
  model(migrator);
  classes(migrator);
  checkpoints(migrator);
  data(migrator);
}

}  // namespace meshwright::config
