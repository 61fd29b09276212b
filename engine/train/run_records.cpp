#include "engine/train/run_records.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/object.hpp>

#include "engine/config/describe.h"
#include "engine/config/differences.h"
#include "engine/config/listen_address.h"
#include "engine/plan/plan.h"
#include "engine/report/report.h"
#include "meshwright/abi.h"
#include "sdk/files/read_file.h"

namespace meshwright::train {

namespace fs = std::filesystem;

namespace {

std::string environment_json(const Job& job, Trainer& trainer) {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  boost::json::object out;
  out["meshwright"] = MESHWRIGHT_VERSION;
  out["host"] = host;
  out["world_size"] = trainer.world().size();
  out["threads"] = at::get_num_threads();
  out["device"] = trainer.world().device().str();
  const loader::LoadedPlugin& plugin = *trainer.plan().strategy.plugin;
  out["plugin"] = {{"name", plugin.name},
                   {"version", plugin.version},
                   {"path", plugin.path.string()},
                   {"facts", plugin.facts_hash}};
  boost::json::object facts;
  for (const auto& [name, value] : loader::engine_facts()) facts[name] = value;
  out["facts"] = facts;
  out["file"] = job.impl().config.file.string();
  return report::pretty_json(out);
}

// Tables that are left out of the configuration as it was resolved, so that train takes the file
// again.
std::vector<std::string> tables_not_given(const Job& job) {
  std::vector<std::string> without;
  if (job.impl().config.shared.sizes.cp <= 1) without.emplace_back("distributed.context");
  if (!job.impl().config.shared.pipeline_given) without.emplace_back("distributed.pipeline");
  for (const char* table : {"distributed.moe", "distributed.moe.mp_policy"}) {
    const Options& moe = job.table(table);
    auto given = [&](const meshwright_option* option) { return moe.is_given(option->name); };
    if (std::none_of(moe.schema().options.begin(), moe.schema().options.end(), given))
      without.emplace_back(table);
  }
  return without;
}

// Paths of [plugins] as they were found, from the file's folder or from where --set was typed: the
// run's folder is another one.
void make_absolute(const fs::path& file, Options& plugins) {
  for (const char* key : {"load", "path"}) {
    if (!plugins.is_given(key)) continue;
    const Origin origin = plugins.origin(key);
    const fs::path base =
        origin.source == Origin::Source::command_line ? fs::path() : file.parent_path();
    std::vector<std::string> paths = plugins.get_strings(key);
    for (std::string& path : paths)
      if (!path.empty()) path = fs::absolute(base / path).lexically_normal().string();
    plugins.set(key, OptionValue(paths), origin);
  }
}

std::string resolved_toml(const Job& job) {
  config::Config config = job.impl().config;
  make_absolute(config.file, config.tables.at("plugins"));
  return config::show_toml(config, /*with_origins=*/true, tables_not_given(job));
}

}  // namespace

std::optional<std::vector<config::Difference>> settings_changed(const std::filesystem::path& folder,
                                                                const Job& job) {
  Diagnostics ignored;  // of a file that somebody has edited, or that is not there
  const std::string file = (folder / "config.resolved.toml").string();
  const std::vector<config::Setting> before =
      config::settings_of(base::read_file(file), file, ignored);
  if (before.empty()) return std::nullopt;
  return config::differences({before, config::settings_of(resolved_toml(job), file, ignored)});
}

std::string change_text(const config::Difference& change) {
  auto text = [&](size_t which) {
    const std::string& value = change.values[which];
    return value.empty() ? std::string("not set") : value;
  };
  return change.key + " = " + text(1) + " (was " + text(0) + ")";
}

std::string changed_settings(const std::filesystem::path& folder, const Job& job,
                             const std::vector<std::string>& without) {
  constexpr size_t kMost = 8;
  std::vector<config::Difference> found =
      settings_changed(folder, job).value_or(std::vector<config::Difference>());
  std::erase_if(found, [&](const config::Difference& one) {
    return std::find(without.begin(), without.end(), one.key) != without.end();
  });
  std::string out;
  for (size_t i = 0; i < std::min(found.size(), kMost); ++i)
    out += (out.empty() ? "continues with " : ", ") + change_text(found[i]);
  if (found.size() > kMost) out += " and " + std::to_string(found.size() - kMost) + " more";
  return out;
}

monitor::Settings monitor_settings(const Job& job, Trainer& trainer,
                                   std::optional<int64_t> completed) {
  const Options& asked = job.table("report");
  monitor::Settings out;
  out.completed = completed;
  out.tensorboard = asked.get_bool("tensorboard");
  out.csv = asked.get_bool("csv");
  out.prometheus_file = asked.get_string("prometheus_file");
  if (asked.is_set("prometheus")) {
    const config::ListenAddress at =
        config::parse_listen_address(asked.get_string("prometheus"), "report.prometheus");
    out.host = at.host;
    out.port = at.port;
  }
  if (out.tensorboard) out.configuration = resolved_toml(job);
  out.facts = {.run = job.table("run").get_string("name"),
               .strategy = trainer.plan().strategy.info->name,
               .version = MESHWRIGHT_VERSION,
               .ranks = trainer.world().size(),
               .max_steps = trainer.max_steps(),
               .completed = trainer.next_step()};
  return out;
}

std::string plan_text(Trainer& trainer, const Foretold& foretold) {
  boost::json::object plan = plan::to_json(trainer.plan());
  foretold.put_into(plan);
  return report::pretty_json(plan);
}

void write_records(const Reporter& reporter, const RunOptions& options, const Job& job,
                   Trainer& trainer, const Foretold& foretold) {
  if (!reporter) return;
  reporter.put("config.toml", options.file.empty() ? options.text : base::read_file(options.file));
  reporter.put("config.resolved.toml", resolved_toml(job));
  reporter.put("plan.json", plan_text(trainer, foretold));
  reporter.put("env.json", environment_json(job, trainer));
}

}  // namespace meshwright::train
