#include "engine/train/preflight/before.h"
#include "engine/config/config.h"
#include "engine/job/job_data.h"

#include <algorithm>
#include <numeric>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/resume.h"
#include "engine/checkpoint/weights/auxiliary_files.h"
#include "engine/job/before_start.h"
#include "engine/job/helps.h"
#include "engine/job/training.h"
#include "engine/launch/devices.h"

namespace meshwright::before {
namespace {

// Said by rank 0 once training starts, where a checkpoint that the run continues may have brought a
// tokenizer of its own.
void tell_tokenizer(const plan::Job& job, Diagnostics& found) {
  const Options& model = job.config.table("model");
  if (!model.get_string("pretrained").empty() || !model.is_set("config") ||
      !data::reads_bytes(job.config.table("dataset")))
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

// The smallest world that has room for the sizes, when the real one is not known.
int64_t smallest_world(const ParallelSizes& sizes) {
  int64_t copies = std::max<int64_t>(1, sizes.dp_replicate);
  int64_t unit = sizes.tp * sizes.cp;
  // A stage holds whole replicas, and whole expert groups.
  int64_t stage = std::lcm(unit * copies, std::max<int64_t>(1, sizes.ep));
  if (copies > 1 && stage / unit == copies) stage *= 2;
  return stage * sizes.pp;
}

bool depends_on_the_world(ErrorCode code) {
  return code == ErrorCode::world_not_divisible || code == ErrorCode::world_mismatch ||
         code == ErrorCode::dp_replicate_not_divisor || code == ErrorCode::dp_replicate_too_large ||
         code == ErrorCode::ep_not_divisor || code == ErrorCode::bad_rank_list;
}

// `reload` is to outlive it.
ReloadFor for_any_world(const Reload& reload) {
  return [&reload](int64_t, const std::vector<std::string>& sets, Diagnostics& problems) {
    return reload(sets, problems);
  };
}

plan::JobPlan plan_or_try(const ReloadFor& reload, plan::Job& job,
                          const plan::PlanRequest& request) {
  try {
    return plan::make_plan(job, request);
  } catch (const Error& error) {
    if (exit_status(error.code()) != 3) throw;
    auto is_planned = [&](const std::vector<std::string>& sets, int64_t world) {
      try {
        Diagnostics problems;
        std::optional<plan::Job> other = reload(world, sets, problems);
        if (!other || !problems.ok()) return false;
        other->samples = job.samples;
        other->trained = job.trained;
        plan::PlanRequest one = request;
        one.world_size = world;
        one.rank = std::min(request.rank, world - 1);
        one.compares_sequence = false;
        plan::make_plan(*other, one);
        return true;
      } catch (const Error&) {
        return false;
      }
    };
    throw plan::with_tried_help(error, job.config.shared.sizes, request.world_size, is_planned);
  }
}

}  // namespace

Diagnostics check_before_start(const Reload& reload, const plan::Job& job,
                               const plan::JobPlan& plan, std::optional<int64_t> local_ranks) {
  Diagnostics found;
  for (const Diagnostics& one : {check_files(job, plan, /*data=*/true), check_run_folder(job)})
    for (const Error& error : one.errors()) found.add(error);
  if (!local_ranks) tell_tokenizer(job, found);
  const std::string device = job.config.table("dist_env").get_string("device");
  // On CUDA devices the tensors lie elsewhere.
  if (device == "cuda" || (device == "auto" && launch::driver_lists_devices())) return found;
  auto replan = [&](const std::vector<std::string>& sets, int64_t world) -> std::optional<Bytes> {
    Diagnostics problems;
    try {
      std::optional<plan::Job> other = reload(sets, problems);
      if (!other || !problems.ok()) return std::nullopt;
      return plan::make_plan(*other, {.world_size = world,
                                      .rank = 0,
                                      .assumed_world = true,
                                      .compares_sequence = false})
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

namespace {

// What a run that goes on has read of its epochs. What is wrong with its checkpoint is said by the
// run itself.
std::optional<plan::Trained> trained_by(const plan::Job& job) {
  const std::filesystem::path own = config::run_folder(job.config.table("run")) / "checkpoints";
  try {
    const checkpoint::Start start = checkpoint::choose_start(
        job.config.table("checkpoint").get_string("resume"), own, checkpoint::restarted());
    if (start.from.empty()) return std::nullopt;
    const checkpoint::Meta meta = checkpoint::read_meta(start.from);
    return plan::Trained{meta.step, meta.samples};
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::string count_samples(plan::Job& job) {
  try {
    data::count_samples(job);
    if (job.samples) job.trained = trained_by(job);
    return {};
  } catch (const Error& error) {
    return "how many steps step_scheduler.epochs = " +
           std::to_string(job.config.table("step_scheduler").get_int("epochs")) +
           " is, is not known here: " + error.message();
  }
}

std::string messages(const std::vector<Error>& obstacles, bool missing) {
  std::string out;
  for (const Error& error : obstacles)
    if ((error.code() == ErrorCode::missing_key) == missing)
      out += (out.empty() ? "" : "; ") + error.message();
  return out;
}

plan::JobPlan plan_or_help(const Reload& reload, plan::Job& job, const plan::PlanRequest& request) {
  return plan_or_try(for_any_world(reload), job, request);
}

plan::JobPlan plan_to_start(const Reload& reload, plan::Job& job, const Ranks& ranks,
                            int64_t wanted) {
  return plan_to_start(for_any_world(reload), job, ranks, wanted);
}

plan::JobPlan plan_to_start(const ReloadFor& reload, plan::Job& job, const Ranks& ranks,
                            int64_t wanted) {
  const plan::PlanRequest request{.world_size = ranks ? ranks->world_size : wanted, .rank = 0};
  return ranks ? plan::make_plan(job, request) : plan_or_try(reload, job, request);
}

Verdict validate(const Reload& reload, plan::Job& job, std::optional<int64_t> given) {
  // The mesh can be judged once the number of ranks is known: given, or implied by an explicit
  // dp_size. Without it, the sizes and the model are still held against each other, on the smallest
  // world that has room for them.
  const ParallelSizes& sizes = job.config.shared.sizes;
  const bool known = given || sizes.dp.has_value();
  plan::check_rank_limits(job, given);
  const int64_t world = given      ? *given
                        : sizes.dp ? *sizes.dp * sizes.tp * sizes.cp * sizes.pp
                                   : smallest_world(sizes);
  Verdict out;
  if (known) out.world = world;
  count_samples(job);           // what is wrong with the data is said below
  out.strategy = job.strategy;  // or the one that it hands the job on to
  try {
    plan::JobPlan plan = plan_or_help(reload, job, {world, 0, !known});
    out.strategy = plan.strategy;
    for (const std::string& text : plan.notices) out.said.notice(text);
    for (const std::string& text : plan.warnings) out.said.warning(text);
    out.obstacles = plan::errors_of_training(job, &plan);
    Diagnostics before = check_before_start(reload, job, plan, std::nullopt);
    for (const std::string& text : before.notices()) out.said.notice(text);
    for (const std::string& text : before.warnings()) out.said.warning(text);
    out.obstacles.insert(out.obstacles.end(), before.errors().begin(), before.errors().end());
  } catch (const Error& error) {
    if (known || !depends_on_the_world(error.code())) throw;
    out.obstacles = plan::errors_of_training(job, nullptr);
  }
  // A file for planning alone may leave out what only training needs.
  out.missing = messages(out.obstacles, /*missing=*/true);
  if (!plan::written_for_training(job))
    std::erase_if(out.obstacles,
                  [](const Error& error) { return error.code() == ErrorCode::missing_key; });
  if (!out.missing.empty() && out.obstacles.empty())
    out.said.notice("enough for plan, not for train: " + out.missing);
  return out;
}

boost::json::object plan_json(const plan::Job& job, const plan::JobPlan& plan) {
  boost::json::object out = plan::to_json(plan);
  plan::add_training(out, plan::errors_of_training(job, &plan));
  return out;
}

}  // namespace meshwright::before
