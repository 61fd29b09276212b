// A shipped configuration, planned.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "apps/performance/forecast/forecast.h"

namespace meshwright::forecast {

struct Planned {
  plan::Job job;
  plan::JobPlan plan;

  Forecast on(const steptime::Machine& machine) const { return forecast(job, plan, machine); }
};

inline Planned planned(const std::string& config, int64_t world,
                       const std::vector<std::string>& sets, int64_t rank = 0) {
  Diagnostics said;
  std::optional<plan::Job> job = plan::load_job(
      {.file = std::filesystem::path(MESHWRIGHT_SOURCE_DIR "/configs") / (config + ".toml"),
       .sets = sets,
       .environment = {}},
      said);
  for (const Error& error : said.errors()) FAIL(error.what());
  REQUIRE(job.has_value());
  plan::JobPlan plan = plan::make_plan(*job, {world, rank, false});
  return {std::move(*job), std::move(plan)};
}

// Llama 3 8B without tp and replicas, and what else is set.
inline Planned planned_8b(int64_t world, std::vector<std::string> sets, int64_t rank = 0) {
  std::vector<std::string> all = {"distributed.dp_replicate_size=1"};
  auto unset = [&](const std::string& key) {
    return std::ranges::none_of(sets,
                                [&](const std::string& set) { return set.starts_with(key + "="); });
  };
  // Two micro-batches of two samples on 64 ranks.
  if (unset("step_scheduler.global_batch_size"))
    all.push_back("step_scheduler.global_batch_size=256");
  if (unset("distributed.tp_size")) all.push_back("distributed.tp_size=1");
  if (unset("distributed.sequence_parallel")) all.push_back("distributed.sequence_parallel=false");
  all.insert(all.end(), sets.begin(), sets.end());
  return planned("hsdp_tp", world, all, rank);
}

inline steptime::Machine h100() {
  return steptime::find_machine("h100", MESHWRIGHT_SOURCE_DIR "/configs/machines");
}

}  // namespace meshwright::forecast
