#include "engine/cli/before.h"

#include <algorithm>

#include "engine/cli/common.h"
#include "engine/data/dataset.h"
#include "engine/launch/devices.h"
#include "engine/plan/before_start.h"
#include "engine/weights/auxiliary_files.h"

namespace meshwright::cli {
namespace {

void check_data(const plan::Job& job, const plan::JobPlan& plan, Diagnostics& found) {
  const std::string pretrained = job.config.table("model").get_string("pretrained");
  for (const char* name : {"dataset", "validation_dataset"}) {
    const Options& table = job.config.table(name);
    if (!table.is_set("path") || table.get_string("kind") == "mock")
      continue;  // what is missing is said where all keys are checked
    try {
      data::look_at_data(table, plan.outline ? plan.outline->vocab_size : 0, pretrained);
    } catch (const Error& error) {
      found.add(config::placed(error, job.config));
    }
  }
}

// Said by rank 0 once training starts, where a checkpoint that the run continues may have brought a
// tokenizer of its own.
void tell_tokenizer(const plan::Job& job, Diagnostics& found) {
  const Options& model = job.config.table("model");
  if (!model.get_string("pretrained").empty() || !model.is_set("config") ||
      job.config.table("dataset").get_string("kind") != "text")
    return;
  if (std::optional<std::string> notice =
          weights::tokenizer_of_no_use(config::model_config_file(model)))
    found.notice(*notice);
}

// Strategies that could train the job instead of its own.
std::vector<std::string> other_strategies(const plan::Job& job, const plan::JobPlan& plan) {
  std::vector<std::string> out;
  for (const loader::Listing& listing : job.registry->list()) {
    if (listing.plugin == nullptr) continue;
    for (const loader::StrategyInfo& info : listing.plugin->strategies)
      if ((info.capabilities & MESHWRIGHT_CAN_PARALLELIZE) != 0 &&
          info.name != plan.strategy.info->name)
        out.push_back(info.name);
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

Diagnostics check_before_start(const Call& call, const plan::Job& job, const plan::JobPlan& plan,
                               std::optional<int64_t> local_ranks) {
  Diagnostics found;
  check_data(job, plan, found);
  if (!local_ranks) tell_tokenizer(job, found);
  const std::string device = job.config.table("dist_env").get_string("device");
  // On CUDA devices the tensors lie elsewhere.
  if (device == "cuda" || (device == "auto" && launch::driver_lists_devices())) return found;
  auto replan = [&](const std::vector<std::string>& sets, int64_t world) -> std::optional<Bytes> {
    config::LoadOptions options = load_options(call);
    options.sets.insert(options.sets.end(), sets.begin(), sets.end());
    Diagnostics problems;
    try {
      std::optional<plan::Job> other = plan::load_job(options, problems);
      if (!other || !problems.ok()) return std::nullopt;
      return plan::make_plan(*other, {world, 0, /*assumed_world=*/true})
          .footprint.value_or(Footprint{})
          .bytes;
    } catch (const Error&) {
      return std::nullopt;
    }
  };
  Diagnostics memory;
  plan::check_memory(plan, local_ranks.value_or(1), plan::host_memory(),
                     other_strategies(job, plan), replan, memory);
  if (local_ranks)
    for (const std::string& text : memory.warnings()) found.warning(text);
  for (const Error& error : memory.errors())
    if (local_ranks)
      found.add(config::placed(error, job.config));
    else
      found.warning("one rank alone does not fit into this host: " + error.message());
  return found;
}

}  // namespace meshwright::cli
