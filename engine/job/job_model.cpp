#include <filesystem>

#include "engine/config/model_file.h"
#include "engine/job/adapters.h"
#include "engine/job/plan.h"
#include "engine/models/hub_family.h"
#include "sdk/base/files/relative.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright::plan {

std::string JobModel::name() const {
  return request.config.empty() ? "the model family " + key
                                : base::model_file(request.config).string();
}

void say_what_is_seen(ModelOutline& outline, const TpPlanChoice& choice) {
  for (const auto& [pattern, word] : choice.patterns)
    if (word == kOfHeads || word == kOfStream) outline.own_tp_plan.emplace_back(pattern, word);
}

ModelOutline JobModel::outline(const config::Config& config) const {
  try {
    std::error_code failed;
    if (plugin != nullptr && !request.config.empty() &&
        !std::filesystem::exists(request.config, failed))
      throw Error(ErrorCode::file_unreadable,
                  "cannot read " + request.config + ": " +
                      (failed ? failed.message() : std::string("it does not exist")));
    ModelOutline out = family->outline(request);
    say_what_is_seen(out, config.shared.tp_plan);
    return out;
  } catch (const Error& error) {
    throw located(error, config);
  }
}

Error JobModel::located(Error error, const config::Config& config) const {
  // A plugin may name an option of its own.
  if (plugin != nullptr && !error.key().empty()) return error;
  const std::string full = "model." + key;
  const Origin written = config.table("model").origin(key);
  if (std::error_code failed; error.code() == ErrorCode::file_unreadable &&
                              !std::filesystem::exists(request.config, failed) && !failed)
    for (const std::string& help : base::relative_path_help(full, request.config, written.file))
      error.help(help);
  return error.key(full).at(written);
}

std::optional<JobModel> model_of(const Job& job) {
  const Options& table = job.config.table("model");
  auto [path, key] = config::model_path(table);
  if (path.empty() && !job.model) return std::nullopt;
  JobModel out;
  out.request.config = path;
  out.request.storage = table.find_dtype("torch_dtype").value_or(DType::float32);
  out.request.sizes = job.config.shared.sizes;
  out.key = path.empty() ? "plugin" : key;
  if (job.model) {
    out.family = job.model->made;
    out.plugin = job.model->plugin;
    out.request.options = job.config.table(job.model->info->schema.table);
  } else {
    out.family = std::make_shared<outlines::HubFamily>();
  }
  return out;
}

std::string model_settings(const Job& job) {
  if (!job.model) return adapter_settings(job.config);
  std::string out = "model.plugin=" + to_toml(job.model->info->name) + "\n";
  const std::string& table = job.model->info->schema.table;
  const Options& options = job.config.table(table);
  for (const meshwright_option* option : options.schema().options)
    if (options.is_given(option->name))
      out += table + "." + option->name + "=" + to_toml(options.value(option->name)) + "\n";
  return out + adapter_settings(job.config);
}

}  // namespace meshwright::plan
