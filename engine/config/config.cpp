#include "engine/config/config.h"

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

#include "engine/config/toml_value.h"
#include "sdk/base/shared_schemas.h"

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
  out.shared() = shared;
  out.distributed() = table("distributed");
  auto it = tables.find(schema.schema.table);
  out.own() = it != tables.end() ? it->second : Options(schema.schema);
  const Options &steps = table("step_scheduler"), &optimizer = table("optimizer");
  out.job().max_steps = steps.find_int("max_steps").value_or(0);
  out.job().checkpoint_every = table("checkpoint").get_int("every_steps");
  out.job().local_batch = steps.get_int("local_batch_size");
  out.job().global_batch = steps.get_int("global_batch_size");
  out.job().optimizer = optimizer.get_string("name");
  out.job().main_dtype = optimizer.find_dtype("main_dtype");
  out.job().frozen_whole =
      table("lora").get_int("r") > 0 && table("lora").get_string("base_sharding") == "replicate";
  if (optimizer.is_set("max_grad_norm"))
    out.job().max_grad_norm = optimizer.get_number("max_grad_norm");
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

namespace {

void add(const Value& table, const std::string& path, std::vector<Setting>& out) {
  for (const Entry& entry : table.entries) {
    const std::string key = join_key(path, entry.key);
    if (entry.value.is_table())
      add(entry.value, key, out);
    else
      out.push_back({key, to_toml(entry.value)});
  }
}

// As numbers where both are: a file may say 0 where another says 0.0.
bool same_value(const std::string& a, const std::string& b) {
  if (a == b) return true;
  const std::optional<Value> left = parse_toml_value(a), right = parse_toml_value(b);
  auto number = [](const std::optional<Value>& v) {
    return v && (v->kind == Value::Kind::integer || v->kind == Value::Kind::number);
  };
  return number(left) && number(right) && as_number(*left) == as_number(*right);
}

// Whether a key that one side alone has says something there.
bool says_something(const Config& config, const std::string& key, const std::string& value) {
  const size_t dot = key.rfind('.');
  const auto table = config.tables.find(dot == std::string::npos ? "" : key.substr(0, dot));
  if (table == config.tables.end()) return false;
  const meshwright_option* option = table->second.schema().find(key.substr(dot + 1));
  if (option == nullptr) return true;  // a list, or a key of another version
  if (std::holds_alternative<std::monostate>(default_of(*option))) return value != "\"none\"";
  return !same_value(value, option->default_value);
}

}  // namespace

std::vector<Setting> settings_of(std::string_view toml, const std::string& file,
                                 Diagnostics& diagnostics) {
  std::vector<Setting> out;
  if (std::optional<Value> root = parse_toml(toml, file, diagnostics)) add(*root, "", out);
  return out;
}

std::optional<std::string> text_of(std::string_view value) {
  std::optional<Value> read = parse_toml_value(value);
  if (!read || read->kind != Value::Kind::string) return std::nullopt;
  return std::move(read->text);
}

std::vector<Difference> differences(const std::vector<std::vector<Setting>>& configurations) {
  std::vector<Difference> all;
  std::map<std::string, size_t> place;
  for (size_t i = 0; i < configurations.size(); ++i)
    for (const Setting& setting : configurations[i]) {
      auto [at, fresh] = place.emplace(setting.key, all.size());
      if (fresh) all.push_back({setting.key, std::vector<std::string>(configurations.size())});
      all[at->second].values[i] = setting.value;
    }
  std::erase_if(all, [](const Difference& one) {
    return std::all_of(one.values.begin(), one.values.end(),
                       [&](const std::string& value) { return value == one.values.front(); });
  });
  return all;
}

std::vector<Difference> with_effect(std::vector<Difference> found, const Config& config) {
  std::erase_if(found, [&](const Difference& one) {
    std::string only;
    for (const std::string& value : one.values) {
      if (value.empty()) continue;
      if (!only.empty()) return false;  // both have it
      only = value;
    }
    return !says_something(config, one.key, only);
  });
  return found;
}

}  // namespace meshwright::config
