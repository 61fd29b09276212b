#include "engine/config/config.h"

#include "engine/config/model_file.h"

namespace meshwright::config {

Error placed(Error error, const Config& config) {
  if (error.origin().source != Origin::Source::builtin) return error;
  // The longest table that the key lies in; what follows is the option, and perhaps a part of its
  // value.
  std::string_view key = error.key();
  for (size_t dot = key.rfind('.'); dot != std::string_view::npos && dot > 0;
       dot = key.rfind('.', dot - 1)) {
    auto it = config.tables.find(std::string(key.substr(0, dot)));
    if (it == config.tables.end()) continue;
    std::string_view name = key.substr(dot + 1, key.find('.', dot + 1) - dot - 1);
    if (it->second.schema().find(name) != nullptr && it->second.is_given(name))
      error.at(it->second.origin(name));
    break;
  }
  return error;
}

const Options& Config::table(const std::string& name) const {
  auto it = tables.find(name);
  if (it == tables.end())
    throw Error(ErrorCode::internal, "there is no configuration table " + name);
  return it->second;
}

const std::vector<Options>& Config::list(const std::string& name) const {
  auto it = lists.find(name);
  if (it == lists.end()) throw Error(ErrorCode::internal, "there is no configuration list " + name);
  return it->second;
}

StrategyConfig Config::strategy_config(const StrategySchema& schema) const {
  StrategyConfig out;
  out.shared = shared;
  out.shared_values = table("distributed");
  auto it = tables.find(schema.schema.table);
  out.own = it != tables.end() ? it->second : Options(schema.schema);
  const Options &steps = table("step_scheduler"), &optimizer = table("optimizer");
  out.job.max_steps = steps.find_int("max_steps").value_or(0);
  out.job.checkpoint_every = table("checkpoint").get_int("every_steps");
  out.job.local_batch = steps.get_int("local_batch_size");
  out.job.global_batch = steps.get_int("global_batch_size");
  out.job.optimizer = optimizer.get_string("name");
  out.job.main_dtype = optimizer.find_dtype("main_dtype");
  out.job.frozen_whole =
      table("lora").get_int("r") > 0 && table("lora").get_string("base_sharding") == "replicate";
  if (optimizer.is_set("max_grad_norm"))
    out.job.max_grad_norm = optimizer.get_number("max_grad_norm");
  return out;
}

ModelPath model_path(const Options& model) {
  if (std::string path = model.get_string("config"); !path.empty())
    return {std::move(path), "config"};
  return {model.get_string("pretrained"), "pretrained"};
}

std::filesystem::path run_folder(const Options& run) {
  return std::filesystem::path(run.get_string("dir")) / run.get_string("name");
}

std::filesystem::path model_config_file(const Options& model) {
  return base::model_file(model_path(model).path);
}

}  // namespace meshwright::config
