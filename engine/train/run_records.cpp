#include "engine/train/run_records.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/object.hpp>

#include "engine/base/read_file.h"
#include "engine/config/describe.h"
#include "engine/plan/plan.h"
#include "engine/report/report.h"
#include "meshwright/abi.h"

namespace meshwright::train {

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

}  // namespace

void write_records(const Reporter& reporter, const RunOptions& options, const Job& job,
                   Trainer& trainer) {
  if (!reporter) return;
  reporter.put("config.toml", options.file.empty() ? options.text : base::read_file(options.file));
  reporter.put("config.resolved.toml",
               config::show_toml(job.impl().config, /*with_origins=*/true, tables_not_given(job)));
  reporter.put("plan.json", report::pretty_json(plan::to_json(trainer.plan())));
  reporter.put("env.json", environment_json(job, trainer));
}

}  // namespace meshwright::train
