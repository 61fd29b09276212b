#include "engine/config/config.h"

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

StrategyConfig Config::strategy_config(const StrategySchema& schema) const {
  StrategyConfig out;
  out.shared = shared;
  out.shared_values = table("distributed");
  auto it = tables.find(schema.schema.table);
  out.own = it != tables.end() ? it->second : Options(schema.schema);
  return out;
}

std::filesystem::path model_config_file(const Options& model) {
  const std::string config = model.get_string("config");
  std::filesystem::path path = config.empty() ? model.get_string("pretrained") : config;
  return std::filesystem::is_directory(path) ? path / "config.json" : path;
}

}  // namespace meshwright::config
