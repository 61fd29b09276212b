#include "engine/train/preflight/before.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <numeric>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/source.h"
#include "engine/checkpoint/weights/auxiliary_files.h"
#include "engine/checkpoint/weights/export.h"
#include "engine/checkpoint/weights/model_tensors.h"
#include "engine/config/config.h"
#include "engine/config/sources.h"
#include "engine/data/dataset.h"
#include "engine/job/before_start.h"
#include "engine/job/job.h"
#include "engine/job/trainable.h"
#include "engine/launch/spawn.h"
#include "engine/train/preflight/same_run.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/foreign_file.h"

namespace meshwright::before {

namespace fs = std::filesystem;

namespace {

// The checkpoint that the run would go on from; empty: none.
fs::path start_of(const plan::Job& job) {
  return checkpoint::choose_start(job.config.table("checkpoint").get_string("resume"),
                                  config::run_folder(job.config.table("run")) / "checkpoints",
                                  checkpoint::restarted())
      .from;
}

// Said by rank 0 once training starts, where a checkpoint that the run continues may have brought a
// tokenizer of its own.
void tell_tokenizer(const plan::Job& job, Diagnostics& found) {
  const Options& model = job.config.table("model");
  if (!model.get_string("pretrained").empty() || !model.is_set("config") ||
      !config::reads_bytes(job.config, "dataset"))
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
  std::ranges::sort(out);
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

// What a run that goes on has read of its epochs. What is wrong with its checkpoint is said by the
// run itself.
std::optional<plan::Trained> trained_by(const plan::Job& job) {
  try {
    const fs::path start = start_of(job);
    if (start.empty()) return std::nullopt;
    const checkpoint::Meta meta = checkpoint::read_meta(start);
    return plan::Trained{meta.step, meta.samples};
  } catch (const Error&) {
    return std::nullopt;
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
  count_samples(job);  // what is wrong with the data is said below
  for (const std::string& line : data::tell_mix(job)) out.said.notice("dataset.mix " + line);
  out.strategy = job.strategy;  // or the one that it hands the job on to
  try {
    plan::JobPlan plan = plan_or_help(reload, job, {world, 0, !known});
    out.strategy = plan.strategy;
    auto say = [&](const auto& notices, const auto& warnings) {
      for (const std::string& text : notices) out.said.notice(text);
      for (const std::string& text : warnings) out.said.warning(text);
    };
    say(plan.notices, plan.warnings);
    out.obstacles = plan::errors_of_training(job, &plan);
    const Diagnostics before = check_before_start(reload, job, plan, std::nullopt);
    say(before.notices(), before.warnings());
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

namespace {

template <class Check>
void add_what_throws(const plan::Job& job, Diagnostics& found, const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    found.add(config::placed(error, job.config));
  }
}

void check_weights(const plan::Job& job, const plan::JobPlan& plan) {
  const std::string folder = job.config.table("model").get_string("pretrained");
  if (folder.empty() || !plan.outline) return;
  weights::check_tied_head(weights::open_model_tensors(folder, *plan.outline), folder,
                           *plan.outline);
}

// All that a run which goes on is held against.
void check_same_run(const plan::Job& job, const plan::JobPlan& plan,
                    const std::optional<data::DataFingerprint>& fingerprint,
                    checkpoint::Checkpoint& from) {
  const fs::path file = config::model_config_file(job.config.table("model"));
  std::error_code failed;
  const std::string text = fs::is_regular_file(file, failed) ? base::read_file(file) : "";
  if (const std::optional<plan::JobModel> model = plan::model_of(job))
    refuse_other_model(from, job, *model, text);
  refuse_other_optimizer(from, job.config.table("optimizer").get_string("name"));
  refuse_other_adapters(from, job);
  check_base(from, job.config.table("model").get_string("pretrained"));
  check_scale(from, job.config.table("lora"), "");
  refuse_other_data(from, job, fingerprint, job.config.table("dataset").get_int("seq_len"));
  if (plan.max_steps && from.meta().step >= *plan.max_steps) refuse_other_settings(from, job);
}

// What [dataset] and [validation_dataset] name. Of a run that goes on: the fingerprint of the
// first, where it is known.
std::optional<data::DataFingerprint> check_data(const plan::Job& job, const plan::JobPlan& plan,
                                                bool goes_on, Diagnostics& found) {
  std::optional<data::DataFingerprint> fingerprint;
  for (const char* name : {"dataset", "validation_dataset"}) {
    const Options& table = job.config.table(name);
    // What is missing is said where all keys are checked; mock tokens are of a known vocabulary.
    if (!config::names_data(job.config, name) ||
        (!plan.outline && table.get_string("kind") == "mock"))
      continue;
    add_what_throws(job, found, [&] {
      const auto seed = static_cast<uint64_t>(job.config.table("run").get_int("seed"));
      std::optional<data::DataFingerprint> value = data::look_at_data(
          data::dataset_config(job, name, plan.outline ? plan.outline->vocab_size : 0, seed),
          goes_on && name == std::string_view("dataset"));
      if (value) fingerprint = std::move(value);
    });
  }
  return fingerprint;
}

// The checkpoint that the run would go on from; one with adapters alone needs its model, too.
void check_beginning(const plan::Job& job, const plan::JobPlan& plan, const fs::path& start,
                     const std::optional<data::DataFingerprint>& fingerprint, Diagnostics& found) {
  if (start.empty()) return check_weights(job, plan);
  checkpoint::Checkpoint from(start);
  for (Error& error : from.check_headers()) found.add(error.key("checkpoint.resume"));
  check_same_run(job, plan, fingerprint, from);
  if (from.meta().base) check_weights(job, plan);
}

// The folder that is there already and would get the next one.
fs::path nearest(const fs::path& folder) {
  std::error_code failed;
  fs::path at = fs::absolute(folder, failed).lexically_normal();
  while (at.has_relative_path() && !fs::exists(at, failed)) at = at.parent_path();
  return at;
}

void try_run_folder(const plan::Job& job) {
  const fs::path folder = config::run_folder(job.config.table("run"));
  const std::string name = job.config.table("run").get_string("name");
  auto refuse = [&](int reason, const char* key) {
    return base::unwritable(folder, reason, "make").key(key);
  };
  // Beside it lie names that are longer than those of checkpoints.
  constexpr size_t kRoom = 128;
  std::error_code failed;
  bool long_path = fs::absolute(folder, failed).native().size() + kRoom > PATH_MAX;
  for (const fs::path& part : folder) long_path = long_path || part.native().size() > NAME_MAX;
  if (long_path) {
    const bool by_name = name.size() > NAME_MAX;
    throw refuse(ENAMETOOLONG, by_name ? "run.name" : "run.dir")
        .help(std::string("set ") + (by_name ? "run.name" : "run.dir") +
              " to a shorter name: a folder's name has at most " + std::to_string(NAME_MAX) +
              " bytes, a path " + std::to_string(PATH_MAX - kRoom));
  }
  const fs::path at = nearest(folder);
  struct stat status{};
  int reason = ::stat(at.c_str(), &status) == 0 ? 0 : errno;
  if (at.empty()) throw refuse(reason, "run.dir");  // the current folder is gone
  if (reason == 0 && !S_ISDIR(status.st_mode)) reason = ENOTDIR;
  // Permissions alone do not tell: root has them all, and some file systems take nothing.
  const fs::path probe = at / (".meshwright." + std::to_string(::getpid()));
  if (reason == 0 && ::mkdir(probe.c_str(), 0700) != 0) reason = errno;
  if (reason == 0) ::rmdir(probe.c_str());
  if (reason != 0)
    throw refuse(reason, "run.dir")
        .help("set run.dir to a folder that may be written to: " + at.string() + " may not");
}

// What stands where the run would write: an export is made after the last step, a trace too.
void check_names_in(const plan::Job& job) {
  const fs::path folder = config::run_folder(job.config.table("run"));
  std::error_code failed;
  auto refuse = [](Error error, const std::string& what) {
    throw error.key("run.name")
        .help("move that " + what + " away, or set run.name to another name");
  };
  for (const char* name :
       {"metrics.jsonl", "run.log", "plan.json", "env.json", "config.toml", config::kResolvedFile})
    if (fs::is_directory(folder / name, failed))
      refuse(base::unwritable(folder / name, EISDIR), "folder");
  for (const char* name : {"rank_logs", "trace", "checkpoints"})
    if (fs::exists(folder / name, failed) && !fs::is_directory(folder / name, failed))
      refuse(base::unwritable(folder / name, ENOTDIR, "make"), "file");
  if (job.config.table("checkpoint").get_string("export") == "none") return;
  weights::check_target(folder / plan::kExportFolder);
  if (job.config.table("lora").get_int("r") > 0)
    weights::check_target(folder / plan::kAdapterExportFolder);
}

}  // namespace

Diagnostics check_files(const plan::Job& job, const plan::JobPlan& plan, bool data) {
  Diagnostics found;
  std::optional<fs::path> start;
  add_what_throws(job, found, [&] { start = start_of(job); });
  std::optional<data::DataFingerprint> fingerprint;
  if (data) fingerprint = check_data(job, plan, start && !start->empty(), found);
  if (plan.outline && start)
    add_what_throws(job, found, [&] { check_beginning(job, plan, *start, fingerprint, found); });
  return found;
}

Diagnostics check_run_folder(const plan::Job& job) {
  Diagnostics found;
  if (plan::written_for_training(job))
    add_what_throws(job, found, [&] {
      try_run_folder(job);
      check_names_in(job);
    });
  return found;
}

}  // namespace meshwright::before
