#include "engine/train/run/run_records.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/object.hpp>

#include "engine/config/config.h"
#include "engine/config/describe.h"
#include "engine/config/differences.h"
#include "engine/config/listen_address.h"
#include "engine/job/plan.h"
#include "engine/train/preflight/same_run.h"
#include "meshwright/abi.h"
#include "sdk/base/files/read_file.h"
#include "sdk/base/host_facts.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::train {

namespace fs = std::filesystem;

namespace {

std::string environment_json(const Job& job, Trainer& trainer) {
  boost::json::object out;
  out["meshwright"] = MESHWRIGHT_VERSION;
  out["host"] = host_name();
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

}  // namespace

std::string changed_settings(const std::filesystem::path& folder, const Job& job,
                             const std::vector<std::string>& without) {
  constexpr size_t kMost = 8;
  std::vector<config::Difference> found =
      before::settings_changed(folder, job.impl()).value_or(std::vector<config::Difference>());
  std::erase_if(found, [&](const config::Difference& one) {
    return std::find(without.begin(), without.end(), one.key) != without.end();
  });
  std::string out;
  for (size_t i = 0; i < std::min(found.size(), kMost); ++i)
    out += (out.empty() ? "continues with " : ", ") + before::change_text(found[i]);
  if (found.size() > kMost) out += " and " + std::to_string(found.size() - kMost) + " more";
  return out;
}

MonitorSettings monitor_settings(const Job& job, Trainer& trainer,
                                 std::optional<int64_t> completed) {
  const Options& asked = job.table("report");
  MonitorSettings out;
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
  if (out.tensorboard) out.configuration = before::resolved_toml(job.impl());
  out.facts = {.run = job.table("run").get_string("name"),
               .strategy = trainer.plan().strategy.info->name,
               .version = MESHWRIGHT_VERSION,
               .ranks = trainer.world().size(),
               .max_steps = trainer.max_steps(),
               .completed = trainer.next_step()};
  return out;
}

std::string plan_text(Trainer& trainer, const PredictionError& prediction_error) {
  boost::json::object plan = plan::to_json(trainer.plan());
  prediction_error.put_into(plan);
  return report::pretty_json(plan);
}

void write_records(const Reporter& reporter, const RunOptions& options, const Job& job,
                   Trainer& trainer, const PredictionError& prediction_error) {
  if (!reporter) return;
  reporter.put("config.toml", options.given->text());
  reporter.put(config::kResolvedFile, before::resolved_toml(job.impl()));
  reporter.put("plan.json", plan_text(trainer, prediction_error));
  reporter.put("env.json", environment_json(job, trainer));
}

}  // namespace meshwright::train
